"""What the planner asks of text and of a transform; shards and blank infilling are one each."""

from collections.abc import Sequence
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from data_pipeline.rows import Pieces, Rows


class Split(Protocol):
    """Documents 0 .. num_documents - 1, read in any order, many at once."""

    @property
    def num_documents(self) -> int: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def fingerprint(self) -> str:
        """Changes when any document changes."""
        ...

    @property
    def encoder(self) -> "Split | None":
        """The same documents under a second tokenizer, where there is one."""
        ...

    def lengths(self, document_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """Stored tokens of each document, its prompt included."""
        ...

    def prompt_lengths(self, document_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """Leading tokens of each document that are prompt."""
        ...

    def sentence_ends(
        self, document_N: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Token counts after which sentences end, end to end, and where each document's begin."""
        ...

    def tokens(
        self, document_N: NDArray[np.int64], start_N: NDArray[np.int64], stop_N: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        """The stretches start..stop - 1 of the given documents, end to end."""
        ...


class TransformPlan(Protocol):
    """What was drawn for N pieces, without looking at a token."""

    @property
    def row_lengths_N(self) -> NDArray[np.int64]:
        """Tokens of the row that each piece becomes."""
        ...

    @property
    def num_targets_N(self) -> NDArray[np.int64]:
        """Positions of each row that carry loss."""
        ...

    def take(self, index: Any) -> Self:
        """The plan of some pieces, in the order asked for."""
        ...

    @staticmethod
    def concatenate(plans: Sequence[Any]) -> Any:
        """One plan of the pieces of several, in order."""
        ...

    def counts(self) -> dict[str, int]:
        """Targets by kind, and what was lost, by reason."""
        ...


class Transform(Protocol):
    """A way to make training rows of pieces; pure, and the same for a piece in any company."""

    @property
    def vocab_size(self) -> int:
        """Ids that its rows may hold: the tokenizer's, and those that it adds."""
        ...

    @property
    def reads_encoder(self) -> bool:
        """Whether its rows carry the ids of the split's second stream, as sources."""
        ...

    def draw(
        self,
        pieces: Pieces,
        keys_N: NDArray[np.uint64],
        max_row_tokens_N: NDArray[np.int64],
    ) -> Any:
        """The TransformPlan of N pieces, none with a row longer than its maximum."""
        ...

    def build(self, tokens: NDArray[np.int32], plan: Any) -> Rows:
        """The rows of the plan's pieces, whose stored tokens are given end to end; where it reads a
        second stream, that one's behind them."""
        ...
