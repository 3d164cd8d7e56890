"""Nested settings by dotted names: {"a": {"b": 1}} is {"a.b": 1}."""

from collections.abc import Mapping
from typing import Any


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of nested mappings by their dotted names."""
    leaves: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping) and value:
            leaves |= flat(value, f"{prefix}{key}.")
        else:
            leaves[f"{prefix}{key}"] = value
    return leaves
