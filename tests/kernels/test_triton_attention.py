"""The attention kernels in triton's interpreter (or on a GPU) against float64 einsum.

Tolerances: fp32 sums of some dozen products round at 1e-7 each; fp16 and bf16 keep 11 and 8 bits,
and the interpreter truncates bf16 where a GPU rounds.
"""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from kernels.attention import reference
from kernels.attention.operators import latent_attention, latent_memory_attention
from kernels.visibility import Visibility

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 3e-2}
MASKS = {
    "causal": [[(45, 0)], [(45, 0)]],
    "encoder": [[(45, 45)], [(45, 45)]],
    "one prefix": [[(45, 27)], [(31, 7)]],
    "packed": [[(17, 9), (19, 0), (7, 7)], [(1, 0), (33, 20)]],
    "padding": [[(12, 5)], []],
}
PACKED = MASKS["packed"]  # 2 and 11 positions of padding
NUM_TOKENS = 45


@dataclass(frozen=True)
class Case:
    """What is attended to, in which dtype, and the tiles of the kernels."""

    mask: str = "packed"
    dtype: torch.dtype = torch.float32
    num_slots: int = 1
    head_width: int = 32
    heads: int = 2
    tile: tuple[int, int] = (16, 16)

    @property
    def rows(self) -> list[list[tuple[int, int]]]:
        """(length, sep) of the documents of each row."""
        return MASKS[self.mask]

    def __str__(self) -> str:
        tile = "x".join(map(str, self.tile))
        kind = f"{self.dtype}".removeprefix("torch.")
        return f"{self.mask}-{kind}-{self.num_slots} slots-{self.head_width} wide-{tile}"


FAST = [
    Case("causal", num_slots=0),
    Case("encoder", num_slots=3, tile=(32, 16)),
    Case("one prefix", tile=(16, 32)),
    Case("packed", num_slots=3),
    Case("padding", tile=(64, 64)),
    Case("packed", torch.float16, head_width=64, heads=1),
    Case("packed", torch.bfloat16, tile=(16, 32)),
    Case("packed", head_width=80, heads=1),
]
SLOW = [
    Case(mask, dtype, num_slots, width, tile=tile)
    for mask in MASKS
    for dtype in TOLERANCE
    for num_slots in (0, 1, 3)
    for width, tile in ((32, (16, 32)), (64, (64, 32)), (96, (32, 32)), (128, (32, 64)))
]


@pytest.fixture(autouse=True)
def small_tiles(triton_device, monkeypatch):
    """A function that sets the tiles of all kernels; to begin with 16 x 16."""
    launch = pytest.importorskip("kernels.attention.launch", reason="triton is not installed")

    def use(block_q: int, block_k: int) -> None:
        tiles = launch.Tiles(block_q, block_k, num_warps=4, num_stages=1)
        monkeypatch.setattr(launch, "tiles_of", lambda *_: tiles)

    use(16, 16)
    return use


def drawn(case: Case, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """A fused projection (B, T, 3, H, K), slots (2, B, N, M, H, K) and a gradient of the output."""
    generator = torch.Generator().manual_seed(3)
    batch, heads, width = len(case.rows), case.heads, case.head_width
    documents = max(len(row) for row in case.rows)
    fused = torch.randn(batch, NUM_TOKENS, 3, heads, width, generator=generator)
    slots = torch.randn(2, batch, documents, case.num_slots, heads, width, generator=generator)
    upstream = torch.randn(batch, NUM_TOKENS, heads, width, generator=generator)
    return tuple(t.to(device, case.dtype) for t in (fused, slots, upstream))


def outputs(implementation, visibility: Visibility, fused: Tensor, slots: Tensor, upstream: Tensor):
    """The output and the gradients of the projection and the slots."""
    fused, slots = fused.detach().requires_grad_(), slots.detach().requires_grad_()
    out = implementation(*fused.unbind(2), visibility, latent_k=slots[0], latent_v=slots[1])
    return out.detach(), *torch.autograd.grad(out, (fused, slots), upstream)


def assert_parity(case: Case, visibility: Visibility, device: str) -> None:
    tensors = drawn(case, device)
    ours = outputs(latent_memory_attention, visibility, *tensors)
    exact = outputs(
        reference.latent_memory_attention, visibility, *(t.double() for t in tensors)
    )  # fmt: skip
    for name, got, expected in zip(("out", "fused", "slots"), ours, exact, strict=True):
        assert got.dtype == case.dtype
        assert torch.isfinite(got).all(), name
        if got.numel():
            # The first key of a causal document gets gradients from all queries.
            scale = expected.abs().max().clamp(min=1)
            error = float((got.double() - expected).abs().max() / scale)
            assert error < TOLERANCE[case.dtype], (name, error)
    padding = visibility.padding()
    assert not ours[0][padding].any()
    assert not ours[1][padding].any()  # gradients came in there, as everywhere


@pytest.mark.parametrize("case", FAST, ids=str)
def test_output_and_gradients_equal_float64(case, packed, small_tiles, triton_device):
    small_tiles(*case.tile)
    assert_parity(case, packed(case.rows, NUM_TOKENS, triton_device), triton_device)


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW, ids=str)
def test_every_mask_dtype_and_head_width_equals_float64(case, packed, small_tiles, triton_device):
    """The sweep: four minutes in the interpreter."""
    small_tiles(*case.tile)
    assert_parity(case, packed(case.rows, NUM_TOKENS, triton_device), triton_device)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_the_tiles_of_a_gpu_give_the_same(dtype, packed, monkeypatch, triton_device):
    """Half a minute: the tiles that launch.py picks, on a row longer than one of them."""
    from kernels.attention import launch

    tiles = launch.HALF_PRECISION
    monkeypatch.setattr(launch, "tiles_of", lambda kernel, *_: tiles[kernel][0])
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, 300, 3, 1, 64), (2, 1, 3, 2, 1, 64), (1, 300, 1, 64)]
    drawn_tensors = [torch.randn(s, generator=generator).to(triton_device, dtype) for s in shapes]
    visibility = packed([[(150, 60), (40, 0), (70, 70)]], 300, triton_device)
    ours = outputs(latent_memory_attention, visibility, *drawn_tensors)
    exact = outputs(
        reference.latent_memory_attention, visibility, *(t.double() for t in drawn_tensors)
    )
    for got, expected in zip(ours, exact, strict=True):
        # Gradients of slots are sums over up to 150 queries.
        assert (got.double() - expected).abs().max() < 4 * TOLERANCE[dtype]


@pytest.fixture
def forward(packed, triton_device):
    """A function (fused, slots) -> output over the packed rows."""
    visibility = packed(PACKED, NUM_TOKENS, triton_device)

    def run(fused: Tensor, slots: Tensor) -> Tensor:
        return latent_memory_attention(
            *fused.unbind(2), visibility, latent_k=slots[0], latent_v=slots[1]
        )

    return run


def test_weights_of_keys_and_slots_sum_to_one(forward, triton_device):
    fused, slots, _ = drawn(Case(num_slots=3), triton_device)
    fused[:, :, 2], slots[1] = 1.0, 1.0
    out = forward(fused, slots)
    assert torch.allclose(out[0, :43], torch.ones_like(out[0, :43]), atol=1e-6)
    assert not out[0, 43:].any()


def test_a_changed_key_outside_the_interval_leaves_bits_alone(forward, triton_device):
    fused, slots, _ = drawn(Case(), triton_device)
    before = forward(fused, slots)
    fused[0, 40, 1:] = 1e4  # in the third document
    slots[:, 0, 2] = -1e4
    after = forward(fused, slots)
    assert torch.equal(before[0, :36], after[0, :36])
    assert torch.equal(before[1], after[1])
    assert not torch.equal(before[0, 40], after[0, 40])


def test_a_document_gives_the_same_bits_wherever_its_neighbours_end(packed, triton_device):
    fused, slots, _ = drawn(Case(num_slots=1), triton_device)
    alone = fused[:, 16:32], slots[:, :, 1:2]
    expected = latent_memory_attention(
        *alone[0].unbind(2),
        packed([[(16, 5)]] * 2, 16, triton_device),
        latent_k=alone[1][0],
        latent_v=alone[1][1],
    )
    among = packed([[(16, 5)] * 2, [(16, 9), (16, 5)]], NUM_TOKENS, triton_device)
    out = latent_memory_attention(
        *fused.unbind(2), among, latent_k=slots[0], latent_v=slots[1]
    )  # fmt: skip
    assert torch.equal(out[:, 16:32], expected)


def test_a_slot_that_scores_minus_infinity_is_no_slot(forward, packed, triton_device):
    fused, slots, _ = drawn(Case(), triton_device)
    fused[:, :, 0, :, 0], slots[0, ..., 0] = 1.0, -1e6
    bare = latent_memory_attention(*fused.unbind(2), packed(PACKED, NUM_TOKENS, triton_device))
    assert torch.allclose(forward(fused, slots), bare, atol=1e-6)


def test_equal_slots_are_one_slot_with_the_log_of_their_number_added(forward, triton_device):
    fused, slots, _ = drawn(Case(), triton_device)
    fused[:, :, 0, :, 0] = math.sqrt(32)  # so that coordinate 0 of a key is added to its score
    three = forward(fused, slots.expand(-1, -1, -1, 3, -1, -1))
    slots[0, ..., 0] += math.log(3)
    assert torch.allclose(three, forward(fused, slots), atol=2e-6)


def test_repeated_runs_give_equal_bits(packed, triton_device):
    tensors = drawn(Case(num_slots=2, heads=1), triton_device)
    visibility = packed(PACKED, NUM_TOKENS, triton_device)
    first = outputs(latent_memory_attention, visibility, *tensors)
    again = outputs(latent_memory_attention, visibility, *tensors)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_every_element_is_written(monkeypatch, packed, small_tiles, triton_device):
    from kernels.attention import launch

    def poisoned(like: Tensor, shape, dtype) -> Tensor:
        return torch.full(shape, float("nan"), dtype=dtype, device=like.device)

    monkeypatch.setattr(launch, "_empty", poisoned)
    # One row has fewer documents than slots are given for; heads are narrower than their tile.
    case = replace(FAST[-1], num_slots=2)
    assert_parity(case, packed(case.rows, NUM_TOKENS, triton_device), triton_device)


def test_views_that_no_kernel_can_read_are_copied(packed, triton_device):
    fused, _, _ = drawn(Case(num_slots=0), triton_device)
    q, k, v = fused.unbind(2)
    visibility = packed(PACKED, NUM_TOKENS, triton_device)
    expected = latent_memory_attention(q, k, v, visibility)
    turned = q.transpose(2, 3).contiguous().transpose(2, 3)  # a head's numbers lie apart
    out = latent_memory_attention(turned, k, v.clone(), visibility)
    assert torch.equal(out, expected)


def test_padding_before_and_between_documents_sees_nothing(triton_device):
    lo = torch.tensor([[0, 0, 2, 2, 2, 0, 6, 6, 6, 0]], dtype=torch.int32, device=triton_device)
    hi = torch.tensor([[0, 0, 4, 4, 5, 0, 7, 8, 9, 0]], dtype=torch.int32, device=triton_device)
    document = torch.tensor([[-1, -1, 0, 0, 0, -1, 1, 1, 1, -1]], device=triton_device)
    visibility = Visibility(lo, hi, document.int())
    generator = torch.Generator().manual_seed(0)
    fused = torch.randn(1, 10, 3, 1, 32, generator=generator).to(triton_device)
    slots = torch.randn(2, 1, 2, 1, 1, 32, generator=generator).to(triton_device)
    upstream = torch.randn(1, 10, 1, 32, generator=generator).to(triton_device)
    ours = outputs(latent_memory_attention, visibility, fused, slots, upstream)
    in_float64 = [t.double() for t in (fused, slots, upstream)]
    exact = outputs(reference.latent_memory_attention, visibility, *in_float64)
    assert all(torch.allclose(a.double(), b, atol=2e-6) for a, b in zip(ours, exact, strict=True))


def test_a_query_that_sees_nothing_has_an_infinite_log_sum(packed, triton_device):
    fused, _, _ = drawn(Case("padding", num_slots=0), triton_device)
    visibility = packed(MASKS["padding"], NUM_TOKENS, triton_device)
    q, k, v = fused.unbind(2)
    none = q.new_empty(2, 0, 0, 2, 32)
    _, lse = latent_attention(
        q, k, v, none, none, *visibility.query_intervals(), *visibility.key_intervals(),
        visibility.document, *visibility.document_bounds(0),
    )  # fmt: skip
    assert torch.isposinf(lse[1]).all()
    assert torch.isfinite(lse[0, :, :12]).all()
