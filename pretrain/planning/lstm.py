"""Bytes that the two LSTMs of an LSTM VAE keep for their backward.

Every document gets as many places as the longest text has tokens, D x L of them for the D documents
of a micro-batch. With E, H and Z the widths of embedding, state and latent vector, a place keeps

    LSTM          what it reads (E; the writer E + Z), four gates, the state before, the cell before
                  and tanh of the cell behind: 7 H
    the writer    the states that its output layer reads, H, where dropout has made them others;
                  two dropout masks, E and H
    both          the index of a token (int64)

and the loss what any loss keeps, of hidden states E wide. So it is where an LSTM runs operation by
operation. cuDNN keeps a reserve of its own instead, whose size it does not promise and which no GPU
was at hand to measure; oneDNN (a CPU in fp32) keeps two to three times as much of small states.

No torch here; tests/pretrain/test_run_plan_latent.py counts live storages against it.
"""

from dataclasses import dataclass, replace

from pretrain.planning.activations import FP32, INT64, Device, MicroBatch
from pretrain.planning.rows import RowContent
from pretrain.settings.config import Config
from pretrain.settings.latent_config import LstmVaeConfig


@dataclass(frozen=True, kw_only=True)
class LstmPass:
    """A micro-batch on its way through one LSTM of an LSTM VAE."""

    name: str
    sizes: LstmVaeConfig
    batch: MicroBatch
    documents: int  # of a row, at most
    max_tokens: int  # L
    writes: bool

    @property
    def places(self) -> int:
        """D x L."""
        return self.batch.rows * self.documents * self.max_tokens

    def kept_bytes(self, vocab_size: int, element_bytes: int, device: Device = "cuda") -> float:
        """Bytes alive when the forward pass has ended."""
        sizes, texts = self.sizes, self.batch.rows * self.documents
        width, hidden, latent = sizes.embedding_size, sizes.hidden_size, sizes.latent_size
        each = INT64 + element_bytes * (width + 7 * hidden)
        if not self.writes:
            return self.places * each + texts * FP32 * (hidden + 10 * latent)
        each += element_bytes * (latent + hidden)
        if sizes.dropout_prob:
            each += (width + hidden) * (1 if device == "cuda" else element_bytes)
        begins = texts * FP32 * (latent + hidden)
        of_target = element_bytes * width + vocab_size * FP32 + 3 * INT64 + FP32
        moved = self.batch.positions * INT64  # where each token stands in its row
        return self.places * each + begins + moved + self.batch.targets * of_target

    def working_bytes(self, element_bytes: int) -> float:
        """What the first operations of its backward hold at once: the gradients of all gates."""
        return self.places * 4 * self.sizes.hidden_size * element_bytes


def lstm_passes(config: Config, rows: RowContent, batch: MicroBatch) -> list[LstmPass]:
    """Reading and writing, in the order of the forward pass."""
    writes = LstmPass(
        name="lstm_vae writes",
        sizes=config.objectives.lstm_vae,
        batch=batch,
        documents=rows.documents,
        max_tokens=config.data.packing.source_tokens,
        writes=True,
    )
    return [replace(writes, name="lstm_vae reads", writes=False), writes]
