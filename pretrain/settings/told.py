"""What may be told: no log, no line on a terminal and no file of a run holds the secret of a URL.

    hide(config)                                   # once it is known
    told("no answer from s3://KEY:SECRET@bucket")  # "no answer from s3://bucket"

Settings themselves are shown by dotted.shown, which asks nothing of what is hidden.
"""

import logging
import re
from typing import Any

from data_pipeline.reading.file_kinds import scrubbed
from pretrain.settings.dotted import shown

SHORTEST = 8  # characters of a secret that is left out wherever it stands; a word may be shorter
_SECRET_KEY = re.compile(
    r"(api|access|secret)_?key|passw|secret|credential|authorization|(^|_)(key|pass|auth|tokens?)$",
    re.I,
)
_urls: set[str] = set()


def hide(value: Any) -> None:
    """Leave out of all that is told from now on the secrets of every URL in `value`, nested."""
    if isinstance(value, dict):
        for inner in value.values():
            hide(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            hide(inner)
    elif isinstance(value, str) and "://" in value:
        _urls.add(value)


def told(text: str) -> str:
    """`text` without the secrets of URLs, of those in it and of those that are hidden."""
    return scrubbed(text, *_urls, shortest=SHORTEST)


def without_secrets(settings: Any) -> Any:
    """Settings of another's file, as DeepSpeed's, without the text under keys such as api_key and
    without the secrets of URLs."""
    if isinstance(settings, list):
        return [without_secrets(inner) for inner in settings]
    if not isinstance(settings, dict):
        return shown(settings)
    return {
        key: _blotted(held) if _SECRET_KEY.search(key) else without_secrets(held)
        for key, held in settings.items()
    }


def _blotted(held: Any) -> Any:
    if isinstance(held, list):
        return [_blotted(inner) for inner in held]
    return "***" if isinstance(held, str) else without_secrets(held)


class ToldFormatter(logging.Formatter):
    """Lines of a log, tracebacks included, that hold no secret."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        return told(super().format(record))
