"""What is wrong with a command line or a YAML file of settings, in words a person can act on.

Parser key "validation": Expected a <class 'float'>. Got value: much
-> validation must be float, got much.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from jsonargparse import ArgumentParser

_UNKNOWN_KEY = (
    re.compile(r"[Kk]ey[s]? [\"']?([\w.]+)[\"']? (?:is|are) not expected"),
    re.compile(r"No action for key [\"']([\w.]+)[\"']"),
    re.compile(r"[Uu]nrecognized arguments: --([\w.-]+)"),
    re.compile(r"[Uu]nexpected key[s]? \[?[\"']?([\w.]+)"),
    re.compile(r"[Gg]roup [\"']\w*[\"'] does not accept (?:nested )?key [\"']([\w.]+)[\"']"),
    re.compile(r"[Oo]ption [\"']([\w.-]+)[\"'] is not accepted"),
    re.compile(r"does not accept (?:option|nested key|key)s? [\"']([\w.]+)[\"']"),
)
_WRONG_TYPE = re.compile(
    r'Parser key "([\w.]+)"( element \d+)?: Expected an? (.+?)\. Got value: (.*)'
)
_NO_CHOICE = re.compile(r"Parser key \"([\w.]+)\": '?(.*?)'? not among choices \[(.*)\]")


class ReadableParser(ArgumentParser):
    """A parser whose messages can be made readable; those who derive from it say them."""

    def readable(self, message: str) -> str:
        """`message` of jsonargparse in one line, shortened to what the user can act on."""
        text = " ".join(message.split()).removeprefix("error: ")
        for pattern in _UNKNOWN_KEY:
            if found := pattern.search(text):
                return self._unknown(found[1], text)
        text = _WRONG_TYPE.sub(
            lambda m: f"{m[1]}{m[2] or ''} must be {_type_name(m[3])}, got {m[4]}.", text
        )
        return _NO_CHOICE.sub(r"\1 must be one of \3, got \2.", text)

    def _unknown(self, key: str, text: str) -> str:
        known = sorted(_settings(self))
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
        if not near:
            leaves = {k.rsplit(".", 1)[-1]: k for k in reversed(known)}
            leaf = key.rsplit(".", 1)[-1]
            near = [leaves[m] for m in difflib.get_close_matches(leaf, leaves, n=1, cutoff=0.6)]
        file = re.match(r"(\S.*?\.ya?ml): ", text)
        where = f"{file.group(1)}: " if file else ""
        hint = f" Did you mean '{near[0]}'?" if near else " See --help for all settings."
        return f"{where}unknown setting '{key}'.{hint}"


def _settings(parser: ArgumentParser) -> set[str]:
    """The names of all options of a parser and of its commands, without dashes in front."""
    found = set()
    for action in parser._actions:
        if isinstance(action.choices, Mapping):
            found |= {name for p in action.choices.values() for name in _settings(p)}
        elif action.dest != "help":
            found.add((action.option_strings or [action.dest])[0].lstrip("-"))
    return found


def config_files(argv: Sequence[str]) -> list[str]:
    """The files that --config names on a command line."""
    files = [a.split("=", 1)[1] for a in argv if a.startswith("--config=")]
    return files + [argv[i + 1] for i, a in enumerate(argv[:-1]) if a == "--config"]


def yaml_problem(file: str) -> str | None:
    """Why a file is not YAML in UTF-8, or None. Raises OSError where it cannot be read."""
    try:
        yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        return re.sub(r' in "<unicode string>",', " in", str(error))
    return None


def _type_name(text: str) -> str:
    """`text` of jsonargparse as a reader says it: <class 'float'> is float, typing.Literal[...] a
    choice."""
    plain = re.sub(r"<class '([\w.]+)'>", r"\1", text)
    return re.sub(r"typing\.Literal\[(.*)\]", r"one of \1", plain)
