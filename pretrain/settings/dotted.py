"""Nested settings by dotted names: {"a": {"b": 1}} is {"a.b": 1}."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from data_pipeline.reading.file_kinds import scrubbed, without_credentials

_IS_URL = re.compile(r"([a-z][a-z0-9+.-]*::)*[a-z][a-z0-9+.-]*://", re.I)


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of nested mappings by their dotted names."""
    leaves: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping) and value:
            leaves |= flat(value, f"{prefix}{key}.")
        else:
            leaves[f"{prefix}{key}"] = value
    return leaves


def shown(value: Any) -> Any:
    """A setting as logs, tables and curves may show it: URLs in it have lost their secrets."""
    if isinstance(value, Mapping):
        return {key: shown(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(shown(inner) for inner in value)
    if not isinstance(value, str) or "://" not in value:
        return value
    return without_credentials(value) if _IS_URL.match(value) else scrubbed(value)


def short(keys: Iterable[str]) -> dict[str, str]:
    """The shortest end of each dotted key that no other key has."""
    keys = list(dict.fromkeys(keys))
    ends = Counter(end for key in keys for end in set(_ends(key)))
    return {key: next(end for end in _ends(key) if ends[end] == 1 or end == key) for key in keys}


def _ends(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[start:]) for start in range(len(parts) - 1, -1, -1)]
