"""The embedding kernels in triton's interpreter (or on a GPU) against plain torch in float64."""

import pytest
import torch
from torch import Tensor

from kernels.position2d import operators, reference
from kernels.position2d.tied import tied_logits

ROWS, TOKENS, WIDTH = 2, 23, 20
TABLE_ROWS = {"token": 31, "position": 23, "block": 9, "type": 2}
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-1}


@pytest.fixture(autouse=True)
def small_pieces(triton_device, monkeypatch):
    """Pieces so short that most segments have several, and tiles that do not divide the width."""
    launch = pytest.importorskip("kernels.position2d.launch", reason="triton is not installed")
    monkeypatch.setattr(launch, "PIECE", 4)
    monkeypatch.setattr(launch, "BLOCK_D", 16)
    monkeypatch.setattr(launch, "TOKENS", 7)
    return launch


def indices(device: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = {
        name: torch.randint(rows, (ROWS, TOKENS), generator=generator)
        for name, rows in TABLE_ROWS.items()
    }
    # Block position 0 holds most tokens, as in training.
    drawn["block"] *= torch.rand(ROWS, TOKENS, generator=generator) < 0.2
    document = torch.tensor([[0] * 11 + [1] * 9 + [-1] * 3, [0] * TOKENS])
    both = torch.stack((drawn["position"], drawn["block"]), dim=1).int().to(device)
    return {
        "ids": drawn["token"].to(device),
        "position": both[:, 0],  # views, as a batch gives them
        "block": both[:, 1],
        "type": drawn["type"].to(device),
        "document": document.to(device),
    }


def tensors(dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = {name: (rows, WIDTH) for name, rows in TABLE_ROWS.items()}
    shapes |= {"latent": (ROWS, 2, WIDTH), "weight": (WIDTH,), "bias": (WIDTH,)}
    return {
        name: torch.randn(shape, generator=generator).to(device, dtype).requires_grad_()
        for name, shape in shapes.items()
    }


def embed(implementation, dtype: torch.dtype, device: str, *, everything: bool, dropout=0.0):
    """The output, and the gradients of all tables that take part, by name."""
    index, table = indices(device), tensors(dtype, device)
    options = {}
    used = ["token", "position", "block"]
    if everything:
        used = list(table)
        options = {
            "token_type": index["type"],
            "type_table": table["type"],
            "latent": table["latent"],
            "document": index["document"],
            "norm_weight": table["weight"],
            "norm_bias": table["bias"],
            "norm_eps": 1e-5,
        }
    out, _ = implementation.embedding_2d(
        index["ids"],
        index["position"],
        index["block"],
        table["token"],
        table["position"],
        table["block"],
        dropout_prob=dropout,
        **options,
    )
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    gradients = torch.autograd.grad(out, [table[n] for n in used], upstream.to(device, dtype))
    return {"out": out.detach()} | dict(zip(used, gradients, strict=True))


@pytest.mark.parametrize(
    ("dtype", "everything"),
    [
        (torch.float32, False),
        (torch.float32, True),
        (torch.float16, False),
        (torch.bfloat16, True),
    ],
)
def test_output_and_gradients_equal_float64(dtype, everything, triton_device):
    ours = embed(operators, dtype, triton_device, everything=everything)
    exact = embed(reference, torch.float64, triton_device, everything=everything)
    for name, expected in exact.items():
        scale = expected.abs().max()
        error = (ours[name].double() - expected).abs().max() / scale
        assert error < TOLERANCE[dtype], (name, float(error))


def test_every_element_is_written_and_repeated_runs_give_equal_bits(
    small_pieces, monkeypatch, triton_device
):
    def poisoned(like: Tensor, shape, dtype) -> Tensor:
        return torch.full(shape, float("nan"), dtype=dtype, device=like.device)

    first = embed(operators, torch.float32, triton_device, everything=True)
    monkeypatch.setattr(small_pieces, "_empty", poisoned)
    again = embed(operators, torch.float32, triton_device, everything=True)
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_dropout_is_the_same_backward_as_forward_and_keeps_the_mean(triton_device):
    index = torch.zeros(1, 40, dtype=torch.int64, device=triton_device)
    tables = [torch.ones(1, 48, device=triton_device, requires_grad=True) for _ in range(2)]
    torch.manual_seed(7)
    out, _ = operators.embedding_2d(index, index, None, *tables, None, dropout_prob=0.25)
    kept = out != 0
    assert torch.allclose(out[kept], torch.full_like(out[kept], 2 / 0.75))
    # 1,920 draws: the standard error of the share is 0.01.
    assert abs(float(kept.float().mean()) - 0.75) < 0.05
    (gradient,) = torch.autograd.grad(out.sum(), tables[:1])
    assert torch.allclose(gradient[0], kept.sum((0, 1)) / 0.75)
    torch.manual_seed(7)
    again, _ = operators.embedding_2d(index, index, None, *tables, None, dropout_prob=0.25)
    assert torch.equal(out, again)
    other, _ = operators.embedding_2d(index, index, None, *tables, None, dropout_prob=0.25)
    assert not torch.equal(out, other)


@pytest.mark.parametrize("readers", [1, 4, 5, 8, 9, 17])
def test_rows_are_summed_whatever_the_length_of_their_segments(readers, triton_device):
    index = torch.tensor([2] * readers + [0] * 6 + [5] * 3, device=triton_device)
    order = torch.randperm(len(index), generator=torch.Generator().manual_seed(0))
    rows = torch.arange(len(index), dtype=torch.float32)[:, None].expand(-1, 3).to(triton_device)
    total = torch.full((5, 3), float("nan"), device=triton_device)
    total[[0, 2]] = 1.0  # what the head of a tied table gave
    operators.sum_rows_into(total, rows.contiguous(), index[order])  # index 5 drops a row
    expected = torch.ones(6, 3).index_add_(0, index[order].cpu(), rows.cpu())[:5]
    assert torch.equal(total[[0, 2]].cpu(), expected[[0, 2]])
    assert total[[1, 3, 4]].isnan().all()  # nobody reads them


def test_a_row_is_rounded_once(triton_device):
    total, index = torch.ones(2, 3, dtype=torch.bfloat16), torch.zeros(301, dtype=torch.int64)
    rows = torch.ones(301, 3, dtype=torch.bfloat16)
    total, index, rows = (t.to(triton_device) for t in (total, index, rows))
    operators.sum_rows_into(total, rows, index)
    assert total.tolist() == [[302] * 3, [1] * 3]  # added one by one, bf16 would stay at 256


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tied_head_gets_its_gradient_into_the_tables(dtype, triton_device):
    def gradients(implementation, dtype: torch.dtype) -> tuple[Tensor, ...]:
        index, table = indices(triton_device), tensors(dtype, triton_device)
        places = [index[name] for name in ("ids", "position", "block")]
        leaves = [table[name] for name in ("token", "position", "block")]
        x, tied = implementation.embedding_2d(*places, *leaves)
        logits = tied_logits(x, leaves[0], tied)
        upstream = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))
        return torch.autograd.grad(logits, leaves, upstream.to(triton_device, dtype))

    ours, again = (gradients(operators, dtype) for _ in range(2))
    for one, other, exact in zip(ours, again, gradients(reference, torch.float64), strict=True):
        assert torch.equal(one, other)
        assert (one.double() - exact).abs().max() < TOLERANCE[dtype] * exact.abs().max()
