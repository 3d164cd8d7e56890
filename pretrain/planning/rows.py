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
from data_pipeline.protocols import Split, Transform
from data_pipeline.storage.shards import check_one_tokenizer, open_shards
from data_pipeline.tokenizing.special import SpecialIds
from data_pipeline.transforms.blank import BlankConfig, BlankTransform
from data_pipeline.transforms.blank_plan import BlankPlan
from data_pipeline.transforms.causal import CausalPlan
from data_pipeline.transforms.two_streams import TwoStreamPlan
from pretrain.settings.config import Config
from pretrain.settings.data_config import CorpusConfig

AnyPlan = BlankPlan | CausalPlan | TwoStreamPlan

WINDOW_TOKENS = 500_000  # enough for three digits, a fraction of a second
DOCUMENT_TOKENS = 500  # mean of the made-up documents
SENTENCE_TOKENS = 20
MEANS = ("source_tokens", "tokens", "targets", "visible_pairs", "read_tokens", "read_pairs")
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
    read_tokens: float = 0.0  # tokens that an encoder reads, its beginning and end counted
    read_pairs: float = 0.0  # pairs of them, each of which sees all of its text
    documents: int = 0  # texts of the fullest row


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
        origin = f"counted in made-up text, since there are no shards in {shards}: {split}"
    transform = BlankTransform(blanks, special, source_tokens=packing.source_tokens, vocab_size=ids)
    return counted(split, transform, packing, seed, corpus, origin)


def glm_contents(config: Config, vocab_size: int | None) -> list[tuple[CorpusConfig, RowContent]]:
    """What a packed row of each corpus holds for GLM."""
    blanks, packing, seed = config.objectives.glm.blanks, config.data.packing, config.seed
    return [
        (c, row_content(c.shards, packing, blanks, vocab_size=vocab_size, seed=seed))
        for c in config.data.sources
    ]


def mean_content(corpora: Sequence[tuple[float, RowContent]]) -> RowContent:
    """Means of a row that comes from corpora by their weights."""
    if len(corpora) == 1:
        return corpora[0][1]
    total = sum(weight for weight, _ in corpora)
    means = {
        name: sum(weight * getattr(content, name) for weight, content in corpora) / total
        for name in MEANS
    }
    contents = [content for _, content in corpora]
    known = [content.corpus_tokens for content in contents if content.corpus_tokens]
    return RowContent(
        **means,
        vocab_size=max(content.vocab_size for content in contents),
        corpus_tokens=sum(known) if len(known) == len(contents) else None,
        origin="; ".join(content.origin for content in contents),
        documents=max(content.documents for content in contents),
    )


def counted(
    split: Split,
    transform: Transform,
    packing: PackingConfig,
    seed: int,
    corpus: int | None,
    origin: str,
) -> RowContent:
    """What the rows of a first window hold. corpus: stored tokens, None for made-up text; origin:
    in words."""
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
    assert isinstance(plan, AnyPlan), "a transform of another kind"
    read_N = read_lengths(plan).astype(float)
    return RowContent(
        source_tokens=window.report.source_tokens / window.num_rows,
        tokens=window.report.tokens / window.num_rows,
        targets=float(plan.num_targets_N.sum()) / window.num_rows,
        visible_pairs=visible_pairs(plan) / window.num_rows,
        vocab_size=transform.vocab_size,
        corpus_tokens=corpus,
        origin=origin,
        read_tokens=float(read_N.sum()) / window.num_rows,
        read_pairs=float((read_N**2).sum()) / window.num_rows,
        documents=int(np.diff(window.row_offsets_R1).max()),
    )


def read_lengths(plan: AnyPlan) -> NDArray[np.int64]:
    """Tokens of each text as an encoder reads it, beginning and end counted."""
    return plan.encoder_lengths_N if isinstance(plan, TwoStreamPlan) else plan.source_lengths_N


def visible_pairs(plan: AnyPlan) -> float:
    """Pairs of query and visible key: part A sees sep tokens, token i after it i + 1."""
    plan = plan.decoder if isinstance(plan, TwoStreamPlan) else plan
    sep_N = plan.sep_N.astype(float) if isinstance(plan, BlankPlan) else 0.0
    length_N = plan.row_lengths_N.astype(float)
    after_N = (length_N * (length_N + 1) - sep_N * (sep_N + 1)) / 2
    return float(np.sum(sep_N**2 + after_N))


class MadeUpText:
    """A Split without tokens: documents of exponentially distributed length, even sentences."""

    fingerprint = "made-up"

    def __init__(self, seed: int, mean: int = DOCUMENT_TOKENS, longest: int | None = None) -> None:
        """mean: tokens of a document; longest: the most, None for no limit."""
        self._seed, self._mean, self._longest = seed, mean, longest
        self.num_documents = 4 * WINDOW_TOKENS // mean
        self.num_tokens = self.num_documents * mean

    def __str__(self) -> str:
        said = f"documents of {self._mean} tokens in the mean"
        if self._longest is None:
            return f"{said}, sentences of {SENTENCE_TOKENS}"
        return f"{said}, {self._longest} at most"

    @property
    def encoder(self) -> "MadeUpText":
        """The same documents, as long under another tokenizer."""
        return self

    def lengths(self, document_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """Stored tokens of each document, at least 8 or the longest."""
        keys_N = key(self._seed, 0, document_N, np.zeros_like(document_N))
        draws_N = -np.log1p(-uniform(keys_N, 0)) * self._mean
        lengths_N = np.maximum(draws_N, 8).astype(np.int64)
        return lengths_N if self._longest is None else np.minimum(lengths_N, self._longest)

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
