"""A local folder of a transformers tokenizer, opened offline and distrusted.

transformers 5 builds a vocabulary of 1 to 5 pieces, in silence, from files that it does not find or
a class that does not read them; and of two pieces with one id it moves one. Both are refused.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data_pipeline.tokenizing.tokenizers_backend import TokenizersBackend, refuse_shared_ids


def open_transformers_folder(folder: Path) -> TokenizersBackend:
    """Read a folder with transformers, offline, and keep its tokenizer.json alone.

    Raises ValueError where the folder holds no tokenizer, or another than it seems.
    """
    from transformers import AutoTokenizer, BertTokenizer, GPT2Tokenizer

    names = {p.name for p in folder.iterdir()}
    for name in sorted({"added_tokens.json", "tokenizer.json"} & names):
        refuse_shared_ids(_added_pieces(folder / name), str(folder / name))
    described = names & {"tokenizer.json", "tokenizer_config.json", "config.json"}
    options: dict[str, Any] = {}
    if described:
        opener = AutoTokenizer
    elif {"vocab.json", "merges.txt"} <= names:
        opener = GPT2Tokenizer
    elif "vocab.txt" in names:
        opener, options = BertTokenizer, {"do_lower_case": not _is_cased(folder / "vocab.txt")}
    elif models := sorted(n for n in names if n.endswith(".model")):
        raise ValueError(
            f"{folder} holds a sentencepiece model. Name the file: {folder / models[0]}."
        )
    else:
        raise ValueError(
            f"{folder} holds no tokenizer: it needs tokenizer.json, or vocab.json with merges.txt, "
            f"or vocab.txt, each beside its tokenizer_config.json; it holds {sorted(names)[:8]}."
        )
    try:
        opened = opener.from_pretrained(str(folder), local_files_only=True, **options)
    except Exception as error:  # transformers raises nearly every class for a bad folder
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"transformers cannot open the tokenizer in {folder}: {reason}") from error
    if not getattr(opened, "is_fast", False):
        raise ValueError(
            f"{folder} holds a {type(opened).__name__} without a tokenizer.json, which gives no "
            "offsets. Save its fast form there, or use a sentencepiece model."
        )
    _refuse_shrunken_vocabulary(folder, opened.backend_tokenizer.get_vocab())
    return TokenizersBackend(
        opened.backend_tokenizer.to_str().encode("utf-8"), str(folder), _declared_pieces(opened)
    )


def _added_pieces(file: Path) -> list[tuple[str, int]]:
    """The added pieces of added_tokens.json or tokenizer.json, with their ids."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if file.name == "added_tokens.json":
            return [(str(piece), int(number)) for piece, number in content.items()]
        return [(t["content"], t["id"]) for t in content.get("added_tokens") or []]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is damaged ({error!r}). Copy the tokenizer again.") from error


def _refuse_shrunken_vocabulary(folder: Path, vocabulary: Mapping[str, int]) -> None:
    """Raise ValueError where the folder's vocabulary file holds words the tokenizer does not.

    transformers 5 builds a vocabulary of 1 to 5 tokens, in silence, from files it did not find.
    """
    if (folder / "vocab.json").exists():
        words: Sequence[str] = list(json.loads((folder / "vocab.json").read_text(encoding="utf-8")))
    elif (folder / "vocab.txt").exists():
        words = (folder / "vocab.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    else:
        return
    missing = [w for w in words if w not in vocabulary and w.strip()]
    if missing:
        raise ValueError(
            f"{folder}: its vocabulary file holds {len(words)} pieces but the tokenizer opened by "
            f"transformers {len(vocabulary)}, without {missing[0]!r}. Its settings name another "
            "class or other files; correct tokenizer_config.json."
        )


def _is_cased(vocabulary: Path) -> bool:
    """True if a word of vocab.txt holds a capital letter: then text must not be lower-cased."""
    words = vocabulary.read_text(encoding="utf-8").split("\n")
    return any(w != w.lower() for w in words if not w.startswith("["))


def _declared_pieces(opened: object) -> dict[str, str]:
    """The specials a folder's settings declare; a piece declared for two decides nothing."""
    pieces = {n: getattr(opened, f"{n}_token", None) for n in ("pad", "eos", "cls", "mask", "sep")}
    named = {n: str(p) for n, p in pieces.items() if p}
    unknown = getattr(opened, "unk_token", None)
    if unknown:
        named["unk"] = str(unknown)
    return {n: p for n, p in named.items() if list(named.values()).count(p) == 1}
