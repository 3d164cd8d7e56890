"""Times of every contestant of a case, forward and forward with backward, as rows of a table."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from kernels.benchmark.cases import EMBEDDING_WIDTH, VOCABULARY, AttentionCase, peak_of
from kernels.benchmark.contestants import Attention, contestants
from kernels.dispatch import embedding_2d, latent_memory_attention
from kernels.position2d import reference

FLEX_CASES = 4


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement; None where a number says nothing or was not to be had."""

    case: str
    contestant: str
    forward_ms: float | None
    both_ms: float | None
    """Forward and backward."""
    forward_tflops: float | None = None
    """On visible pairs, as the next."""
    both_tflops: float | None = None
    peak_ratio: float | None = None
    """both_tflops over the chip's peak."""
    forward_gbps: float | None = None
    """The least bytes that a forward pass moves, over its time."""
    left_out: str | None = None

    def as_json(self) -> dict[str, object]:
        """What stands in the file."""
        return asdict(self)


def median_ms(run: Callable[[], object], device: str, rounds: int) -> float:
    """Milliseconds of one call, after two that are not counted."""
    times = []
    for number in range(rounds + 2):
        if device == "cuda":
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            run()
            end.record()
            torch.cuda.synchronize()
            elapsed_ms = begin.elapsed_time(end)
        else:
            started_at = time.perf_counter()
            run()
            elapsed_ms = 1000 * (time.perf_counter() - started_at)
        if number > 1:
            times.append(elapsed_ms)
    return statistics.median(times)


def attention_rows(cases: list[AttentionCase], device: str, rounds: int) -> Iterator[Row]:
    """Every contestant of every case."""
    for number, case in enumerate(cases):
        for name, op in contestants(case, device, with_flex=number < FLEX_CASES).items():
            if isinstance(op, str):
                yield _left_out(str(case), name, op)
            else:
                yield _attention_row(case, name, op, device, rounds)


def _attention_row(case: AttentionCase, name: str, op: Attention, device: str, rounds: int) -> Row:
    tensors, upstream = inputs(case, device)

    def both() -> None:
        torch.autograd.grad(op(*tensors), tensors, upstream, allow_unused=True)

    with torch.no_grad():
        forward_ms = median_ms(lambda: op(*tensors), device, rounds)
    both_ms = median_ms(both, device, rounds)
    causal = AttentionCase(
        case.rows, case.tokens, case.heads, case.head_width, "causal", num_slots=0
    )
    of = causal if name.startswith("SDPA causal") else case
    both_tflops = (of.flop(backward=False) + of.flop(backward=True)) / both_ms / 1e9
    peak = peak_of(device)
    itemsize = upstream.element_size()
    return Row(
        case=str(case),
        contestant=name,
        forward_ms=forward_ms,
        both_ms=both_ms,
        forward_tflops=of.flop(backward=False) / forward_ms / 1e9,
        both_tflops=both_tflops,
        peak_ratio=None if peak is None else both_tflops / peak[0],
        forward_gbps=of.size_bytes(itemsize, backward=False) / forward_ms / 1e6,
    )


def inputs(case: AttentionCase, device: str) -> tuple[list[Tensor], Tensor]:
    """q, k, v as views of one projection, the slots' keys and values, and a gradient."""
    generator = torch.Generator(device).manual_seed(1)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    options = {"generator": generator, "device": device, "dtype": dtype}
    shape = (case.rows, case.tokens, 3, case.heads, case.head_width)
    fused = torch.randn(shape, **options).requires_grad_()
    slots = (2, case.rows, case.num_documents, case.num_slots, case.heads, case.head_width)
    latents = torch.randn(slots, **options).requires_grad_()
    upstream = torch.randn(shape[:2] + shape[3:], **options)
    return [*fused.unbind(2), latents[0], latents[1]], upstream


def differing_repeats(case: AttentionCase, device: str, repeats: int = 5) -> int:
    """How many of `repeats` runs, forward and backward, differ from the first in any bit."""
    tensors, upstream = inputs(case, device)
    visibility = case.visibility(device)

    def run() -> list[Tensor]:
        q, k, v, latent_k, latent_v = tensors
        out = latent_memory_attention(q, k, v, visibility, latent_k=latent_k, latent_v=latent_v)
        return [out, *torch.autograd.grad(out, tensors, upstream)]

    first = run()
    others = [run() for _ in range(repeats - 1)]
    return sum(any(not torch.equal(a, b) for a, b in zip(first, again)) for again in others)


def embedding_rows(device: str, rounds: int, quick: bool) -> Iterator[Row]:
    """Ours, eager and compiled torch; and a copy of as many bytes, whose rate is the bound."""
    for rows, tokens in ((2, 512),) if device == "cpu" else ((8, 512), (8, 2048)):
        generator = torch.Generator(device).manual_seed(1)
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        options = {"generator": generator, "device": device}
        index = [torch.randint(n, (rows, tokens), **options) for n in (VOCABULARY, tokens, tokens)]
        index[2] *= torch.rand(rows, tokens, **options) < 0.15  # the rest is block position 0
        tables = [
            torch.randn(n, EMBEDDING_WIDTH, dtype=dtype, **options).requires_grad_()
            for n in (VOCABULARY, tokens, tokens)
        ]
        ops = {"ours": embedding_2d, "eager": reference.embedding_2d}
        if device == "cuda" and not quick:
            ops["compiled torch"] = torch.compile(reference.embedding_2d)
        # ids and positions of 4 bytes, rows of three tables in, one row out
        least_bytes = rows * tokens * (12 + 4 * EMBEDDING_WIDTH * tables[0].element_size())
        case = f"embedding {rows} x {tokens}, {EMBEDDING_WIDTH} wide"
        for name, op in ops.items():
            yield _embedding_row(case, name, op, index, tables, least_bytes, device, rounds)
        source = torch.empty(least_bytes // 2, dtype=torch.uint8, device=device)
        copy_ms = median_ms(source.clone, device, rounds)
        yield Row(
            case=case,
            contestant="a copy of as many bytes",
            forward_ms=copy_ms,
            both_ms=None,
            forward_gbps=least_bytes / copy_ms / 1e6,
        )


def _embedding_row(case, name, op, index, tables, least_bytes, device, rounds) -> Row:
    upstream = torch.ones_like(op(*index, *tables)[0])

    def both() -> None:
        torch.autograd.grad(op(*index, *tables)[0], tables, upstream)

    with torch.no_grad():
        forward_ms = median_ms(lambda: op(*index, *tables), device, rounds)
    return Row(
        case=case,
        contestant=name,
        forward_ms=forward_ms,
        both_ms=median_ms(both, device, rounds),
        forward_gbps=least_bytes / forward_ms / 1e6,
    )


def _left_out(case: str, contestant: str, reason: str) -> Row:
    return Row(case=case, contestant=contestant, forward_ms=None, both_ms=None, left_out=reason)
