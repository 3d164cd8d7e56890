"""What a packed row holds: from the prepared shards where they are there, else from made-up text.

Either way the planner of data_pipeline packs a first window and the rows are counted, so that
blanks, cuts and padding are those of the run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_pipeline import ragged
from data_pipeline.hashing import key, uniform
from data_pipeline.packing.plan import PackingConfig, plan_window
from data_pipeline.protocols import Split
from data_pipeline.storage.shards import check_one_tokenizer, open_shards
from data_pipeline.tokenizing.special import SpecialIds
from data_pipeline.transforms.blank import BlankConfig, BlankTransform
from data_pipeline.transforms.blank_plan import BlankPlan

WINDOW_TOKENS = 500_000  # enough for three digits, a fraction of a second
DOCUMENT_TOKENS = 500  # mean of the made-up documents
SENTENCE_TOKENS = 20
ASSUMED_IDS = 50_266  # GPT-2's vocabulary with the marks of blanks


@dataclass(frozen=True)
class RowContent:
    """Means of one packed row, and of the text behind it."""

    source_tokens: float  # tokens of the texts, CLS and eos counted, before anything is blanked
    tokens: float  # positions that are not padding
    targets: float  # positions that carry loss
    visible_pairs: float  # of query and key
    vocab_size: int  # ids in use
    corpus_tokens: int | None  # stored tokens of the training split; None for made-up text
    origin: str  # where the numbers come from, in words


def has_shards(folder: str) -> bool:
    """Whether there are prepared shards in `folder`, whole or damaged."""
    return (Path(folder) / "manifest.json").is_file()


def vocabulary_of(folders: Sequence[str]) -> int | None:
    """Ids in use in the shards that are there; None where there are none.

    Raises ValueError for shards that cannot be read, or of two tokenizers.
    """
    opened = [open_shards(folder) for folder in folders if has_shards(folder)]
    check_one_tokenizer(opened)
    return opened[0].vocab_size if opened else None


def row_content(
    shards: str, packing: PackingConfig, blanks: BlankConfig, *, vocab_size: int | None, seed: int
) -> RowContent:
    """Rows of the shards in folder `shards`, or of made-up text where there are none.

    vocab_size: ids in use; None takes that of the shards, or ASSUMED_IDS where there are none.
    Raises ValueError for shards that cannot be read.
    """
    if has_shards(shards):
        opened = open_shards(shards)
        split, special = opened.splits["train"], opened.special
        ids, corpus = vocab_size or opened.vocab_size, split.num_tokens
        origin = f"counted in the first window of {shards}"
    else:
        split, special = MadeUpText(seed), SpecialIds(*range(11))
        ids, corpus = vocab_size or ASSUMED_IDS, None
        origin = (
            f"counted in made-up text, since there are no shards in {shards}: documents of "
            f"{DOCUMENT_TOKENS} tokens in the mean, sentences of {SENTENCE_TOKENS}"
        )
    transform = BlankTransform(blanks, special, source_tokens=packing.source_tokens, vocab_size=ids)
    return _counted(split, transform, packing, seed, corpus, origin)


def mean_content(corpora: Sequence[tuple[float, RowContent]]) -> RowContent:
    """Means of a row that comes from corpora by their weights."""
    if len(corpora) == 1:
        return corpora[0][1]
    total = sum(weight for weight, _ in corpora)
    means = {
        name: sum(weight * getattr(content, name) for weight, content in corpora) / total
        for name in ("source_tokens", "tokens", "targets", "visible_pairs")
    }
    contents = [content for _, content in corpora]
    known = [content.corpus_tokens for content in contents if content.corpus_tokens]
    return RowContent(
        **means,
        vocab_size=max(content.vocab_size for content in contents),
        corpus_tokens=sum(known) if len(known) == len(contents) else None,
        origin="; ".join(content.origin for content in contents),
    )


def _counted(
    split: Split,
    transform: BlankTransform,
    packing: PackingConfig,
    seed: int,
    corpus: int | None,
    origin: str,
) -> RowContent:
    window_tokens = min(packing.window_tokens, WINDOW_TOKENS)
    window = plan_window(
        split,
        transform,
        replace(packing, window_tokens=window_tokens),
        seed=seed,
        epoch=0,
        window=0,
    )
    plan = window.plan.take(window.order)
    assert isinstance(plan, BlankPlan), "a BlankTransform draws BlankPlans"
    return RowContent(
        source_tokens=window.report.source_tokens / window.num_rows,
        tokens=window.report.tokens / window.num_rows,
        targets=float(plan.num_targets_N.sum()) / window.num_rows,
        visible_pairs=visible_pairs(plan) / window.num_rows,
        vocab_size=transform.vocab_size,
        corpus_tokens=corpus,
        origin=origin,
    )


def visible_pairs(plan: BlankPlan) -> float:
    """Pairs of query and visible key: part A sees sep tokens, token i after it i + 1."""
    sep_N, length_N = plan.sep_N.astype(float), plan.row_lengths_N.astype(float)
    after_N = (length_N * (length_N + 1) - sep_N * (sep_N + 1)) / 2
    return float((sep_N**2 + after_N).sum())


class MadeUpText:
    """A Split without tokens: documents of exponentially distributed length, even sentences."""

    num_documents = 4 * WINDOW_TOKENS // DOCUMENT_TOKENS
    num_tokens = num_documents * DOCUMENT_TOKENS
    fingerprint = "made-up"
    encoder = None

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def lengths(self, document_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """Stored tokens of each document, at least 8."""
        keys_N = key(self._seed, 0, document_N, np.zeros_like(document_N))
        draws_N = -np.log1p(-uniform(keys_N, 0)) * DOCUMENT_TOKENS
        return np.maximum(draws_N, 8).astype(np.int64)

    def prompt_lengths(self, document_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """0 of each document."""
        return np.zeros(len(document_N), np.int64)

    def sentence_ends(
        self, document_N: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """A sentence ends every SENTENCE_TOKENS tokens and with the document."""
        lengths_N = self.lengths(document_N)
        counts_N = -(-lengths_N // SENTENCE_TOKENS)
        ends = (ragged.within(counts_N) + 1) * SENTENCE_TOKENS
        return np.minimum(ends, np.repeat(lengths_N, counts_N)), ragged.offsets(counts_N)

    def tokens(
        self, document_N: NDArray[np.int64], start_N: NDArray[np.int64], stop_N: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        """There are none: a plan reads no token."""
        raise AssertionError("a plan reads no token")
