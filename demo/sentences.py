"""Sentences of the demo's documents, one a line: what the small VAE learns to write from a vector.

num_sentences, num_kept = write_sentences(texts, tokenizer, Path("sentences.txt"), range(6, 41))
"""

from collections.abc import Iterator
from pathlib import Path

from data_pipeline.tokenizing.sentences import sentence_ends
from data_pipeline.tokenizing.tokenizer import Tokenizer


def write_sentences(
    texts: Path, tokenizer: Tokenizer, path: Path, num_pieces: range
) -> tuple[int, int]:
    """Sentences of the .txt files in folder `texts`, those of `num_pieces` pieces into `path`.

    Returns how many sentences there are and how many were kept. The file appears when complete.
    """
    partial = path.with_suffix(".partial")
    num_sentences = num_kept = 0
    with open(partial, "w", encoding="utf-8") as lines:
        for document in sorted(texts.glob("*.txt")):
            sentences = list(sentences_of(document.read_text(encoding="utf-8")))
            lengths = (len(ids) for ids in tokenizer.encode(sentences))
            kept = [s for s, n in zip(sentences, lengths, strict=True) if n in num_pieces]
            lines.writelines(f"{sentence}\n" for sentence in kept)
            num_sentences += len(sentences)
            num_kept += len(kept)
    partial.replace(path)
    return num_sentences, num_kept


def sentences_of(text: str) -> Iterator[str]:
    """The sentences of a text with single spaces, as data_pipeline finds their ends."""
    begin = 0
    for mark, after in [*sentence_ends(text), (len(text), len(text))]:
        sentence = " ".join(text[begin:mark].split())
        begin = after
        if sentence:
            yield sentence
