"""The eleven control ids of a vocabulary: found by name, else appended after its last id.

Example, a vocabulary of 50,257 pieces that only knows "<|endoftext|>", opened with `pad=eos`:

    pad = eos = 50256, cls 50257, mask 50258, sep 50259, unk 50260, sop 50261, eop 50262,
    gmask 50263, smask 50264, dblock 50265, and 50,266 ids are in use

Two names share an id only where an alias says so.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

# The order of appending; GLM's published table (Du et al. 2022, code of 2023) has the same one.
SPECIALS = (
    "pad",
    "eos",
    "cls",
    "mask",
    "sep",
    "unk",
    "sop",
    "eop",
    "gmask",
    "smask",
    "dblock",
)

# How a special is written in decoded text, and the piece `train-tokenizer` gives it.
SPECIAL_TEXT = {
    "pad": "[PAD]",
    "eos": "[EOS]",
    "cls": "[CLS]",
    "mask": "[MASK]",
    "sep": "[SEP]",
    "unk": "[UNK]",
    "sop": "<sop>",
    "eop": "<eop>",
    "gmask": "[gMASK]",
    "smask": "[sMASK]",
    "dblock": "[dBLOCK]",
}

# Names under which other vocabularies hold a special, the first one present wins.
KNOWN_PIECES = {
    "pad": ("[PAD]", "<pad>", "<|pad|>"),
    "eos": ("[EOS]", "</s>", "<|endoftext|>", "<eos>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "mask": ("[MASK]", "<mask>"),
    "sep": ("[SEP]", "<sep>"),
    "unk": ("[UNK]", "<unk>"),
    "sop": ("<sop>", "<|startofpiece|>"),
    "eop": ("<eop>", "<|endofpiece|>"),
    "gmask": ("[gMASK]", "<gmask>"),
    "smask": ("[sMASK]", "<smask>"),
    "dblock": ("[dBLOCK]", "<dblock>"),
}

# Specials that may stand for one another. The span marks sop and eop never may: a model that reads
# one id for "a span ends" and "a long blank is here" cannot tell them apart.
_SHAREABLE = (frozenset({"pad", "eos", "cls", "sep"}), frozenset({"mask", "gmask", "smask"}))


@dataclass(frozen=True)
class SpecialIds:
    """One id for each name in SPECIALS; aliases have equal ids."""

    pad: int
    eos: int
    cls: int
    mask: int
    sep: int
    unk: int
    sop: int
    eop: int
    gmask: int
    smask: int
    dblock: int

    def by_name(self) -> dict[str, int]:
        """The table {name: id} in the order of SPECIALS."""
        return asdict(self)


class Vocabulary(NamedTuple):
    """What a model that reads ids knows of their tokenizer."""

    special: SpecialIds
    size: int  # ids in use


def parse_aliases(pairs: list[str], option: str = "--alias") -> dict[str, str]:
    """["pad=eos"] -> {"pad": "eos"}. Raises ValueError on another form or a name twice."""
    aliases: dict[str, str] = {}
    for pair in pairs:
        name, equals, target = pair.partition("=")
        if not equals or not name or not target:
            raise ValueError(f"{option} must have the form NAME=NAME, as in pad=eos, got {pair!r}.")
        if name in aliases:
            raise ValueError(f"{option} names {name!r} twice. Give each special one alias.")
        aliases[name] = target
    return aliases


def check_aliases(aliases: Mapping[str, str]) -> None:
    """Raise ValueError where an alias names no special, or joins two that must be told apart."""
    for name, target in aliases.items():
        for word in (name, target):
            if word not in SPECIALS:
                allowed = ", ".join(SPECIALS)
                raise ValueError(
                    f"alias {name}={target}: {word!r} is no special; allowed: {allowed}."
                )
        if name == target:
            raise ValueError(f"alias {name}={target} says nothing. Leave it out.")
        if not any(name in group and target in group for group in _SHAREABLE):
            raise ValueError(
                f"alias {name}={target}: these two must have ids of their own, a model reads them "
                f"in the same row. Leave the alias out; {name} is then appended after the last id."
            )
    for name in aliases:
        _root(name, aliases)


def _root(name: str, aliases: Mapping[str, str]) -> str:
    """The special whose id `name` takes, along the aliases."""
    seen = [name]
    while name in aliases:
        name = aliases[name]
        if name in seen:
            raise ValueError(f"aliases run in a circle: {' = '.join([*seen, name])}. Remove one.")
        seen.append(name)
    return name


def place_specials(
    find: Callable[[str], int | None], num_pieces: int, aliases: Mapping[str, str]
) -> tuple[SpecialIds, int]:
    """The ids of all specials, and how many ids are then in use.

    find: gives the id of a special (by its name in SPECIALS) inside the model, or None.
    num_pieces: ids of the model itself. Missing specials follow in the order of SPECIALS.
    Raises ValueError if two specials that are no aliases share an id.
    """
    check_aliases(aliases)
    groups: dict[str, list[str]] = {}
    for name in SPECIALS:
        groups.setdefault(_root(name, aliases), []).append(name)
    ids: dict[str, int] = {}
    owner: dict[int, str] = {}
    for root, members in groups.items():  # ordered by the first member of each group
        candidates = (find(name) for name in [root, *members])
        found = next((i for i in candidates if i is not None), None)
        if found is None:
            found = num_pieces
            num_pieces += 1
        if found in owner:
            raise ValueError(_shared_id_message(owner[found], root, found))
        owner[found] = root
        ids.update(dict.fromkeys(members, found))
    return SpecialIds(**ids), num_pieces


def _shared_id_message(first: str, second: str, shared: int) -> str:
    message = f"the tokenizer gives {first} and {second} the same id {shared}. "
    if any(first in group and second in group for group in _SHAREABLE):
        return message + f"If that is meant, say so: --alias {second}={first}."
    return message + (
        f"They must differ, as in GLM-10B-Chinese, where gmask and eop share one id by mistake: "
        f"rename the piece of {second} in the tokenizer, so that it gets an id after the last."
    )
