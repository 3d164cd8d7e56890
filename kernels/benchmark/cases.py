"""What is measured: shapes and masks of attention, sizes of the embedding, peaks of chips."""

from dataclasses import dataclass

import torch

from kernels.visibility import Visibility

# TFLOP/s of bf16 without sparsity as seen in matrix products, TB/s of memory.
PEAKS = {"H200": (790.0, 4.3), "H100": (790.0, 3.35), "A100": (312.0, 2.0)}
VOCABULARY, EMBEDDING_WIDTH = 50_304, 1024


@dataclass(frozen=True)
class AttentionCase:
    """B rows of T tokens, `heads` of `head_width`; mask: causal, prefix, or a number of documents.

    With "prefix" one document's first three quarters see each other; the documents of a packed row
    are of equal length, and the same holds in each.
    """

    rows: int
    tokens: int
    heads: int
    head_width: int
    mask: str
    num_slots: int

    def __str__(self) -> str:
        shape = f"{self.rows} x {self.tokens}, {self.heads} heads x {self.head_width}"
        return f"{shape}, {self.mask}, M = {self.num_slots}"

    @property
    def num_documents(self) -> int:
        """Documents of each row."""
        return 1 if self.mask in ("causal", "prefix") else int(self.mask.split()[0])

    @property
    def document_tokens(self) -> int:
        """Tokens of each document."""
        return self.tokens // self.num_documents

    @property
    def prefix_tokens(self) -> int:
        """Leading tokens of each document that see each other."""
        return 0 if self.mask == "causal" else 3 * self.document_tokens // 4

    def visibility(self, device: str) -> Visibility:
        """Who sees whom."""
        token = torch.arange(self.tokens, device=device)
        document = token // self.document_tokens
        lo = document * self.document_tokens
        hi = torch.maximum(token + 1, lo + self.prefix_tokens)
        lo, hi, document = torch.stack((lo, hi, document)).int()[:, None].expand(-1, self.rows, -1)
        return Visibility(lo, hi, document)

    @property
    def visible_pairs(self) -> int:
        """Pairs of query and key or slot in all rows."""
        n, p = self.document_tokens, self.prefix_tokens
        inside = p * p + (n * (n + 1) - p * (p + 1)) // 2
        return self.rows * self.num_documents * (inside + n * self.num_slots)

    def flop(self, *, backward: bool) -> float:
        """Of the visible pairs: 2 matrix products forward, 5 more backward."""
        return (7 if backward else 2) * 2.0 * self.visible_pairs * self.heads * self.head_width

    def size_bytes(self, itemsize: int, *, backward: bool) -> float:
        """The least that has to be read and written: q, k, v, out; backward those again, thrice."""
        one = self.rows * self.tokens * self.heads * self.head_width * itemsize
        return (4 + 8) * one if backward else 4 * one


def attention_cases(on_gpu: bool, quick: bool) -> list[AttentionCase]:
    """On a GPU 1024 numbers a token; on a CPU rows of 512 and the packed rows of 1152."""
    if not on_gpu:
        masks = ("causal", "prefix", "4 documents")
        cases = [AttentionCase(2, 512, 12, 64, mask, m) for mask in masks for m in (0, 1)]
        cases.append(AttentionCase(2, 1152, 12, 64, "36 documents", 1))
        return cases[::3] if quick else cases
    sizes = [(8, 2048)] if quick else [(8, 512), (8, 2048), (2, 8192)]
    masks = ("causal", "prefix", "4 documents", "16 documents")
    cases = [
        AttentionCase(rows, tokens, 16, 64, mask, m)
        for rows, tokens in sizes
        for mask in masks
        for m in (0, 1, 4)
    ]
    wide = [AttentionCase(b, t, 8, 128, mask, 1) for b, t in sizes for mask in masks]
    return [*cases, *wide]


def peak_of(device: str) -> tuple[float, float] | None:
    """TFLOP/s and TB/s of the GPU, where its name is known."""
    if device != "cuda":
        return None
    name = torch.cuda.get_device_name()
    return next((peak for part, peak in PEAKS.items() if part in name), None)
