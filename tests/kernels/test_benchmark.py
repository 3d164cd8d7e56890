"""The benchmark counts what is seen, leaves out what cannot be had, and measures nothing on red."""

import inspect

import pytest
import torch

from kernels.benchmark import __main__ as command
from kernels.benchmark import cases, contestants, measure
from kernels.benchmark.cases import AttentionCase
from kernels.benchmark.table import as_table


@pytest.mark.parametrize("mask", ["causal", "prefix", "4 documents"])
@pytest.mark.parametrize("num_slots", [0, 3])
def test_pairs_are_those_of_the_visibility(mask, num_slots):
    case = AttentionCase(2, 40, 3, 8, mask, num_slots)
    visibility = case.visibility("cpu")
    assert case.visible_pairs == visibility.num_visible_pairs() + 2 * 40 * num_slots
    assert case.flop(backward=False) == 4 * case.visible_pairs * 3 * 8
    assert visibility.document.max() + 1 == case.num_documents


def test_every_contestant_of_a_cpu_gives_what_the_reference_gives():
    case = AttentionCase(2, 24, 2, 8, "4 documents", 1)
    tensors, _ = measure.inputs(case, "cpu")
    found = contestants.contestants(case, "cpu", with_flex=False)
    expected = found["eager"](*tensors)
    for name in ("ours", "SDPA with mask"):
        assert torch.allclose(found[name](*tensors), expected, atol=1e-6), name


def test_a_gpu_has_all_peers_and_reasons_for_those_left_out(monkeypatch):
    monkeypatch.setattr(AttentionCase, "visibility", lambda self, device: None)
    monkeypatch.setattr(contestants, "_two_calls", lambda case, device: "it knows no slots")
    case = AttentionCase(8, 8192, 16, 64, "causal", 1)
    found = contestants.contestants(case, "cuda", with_flex=False)
    assert set(found) == {
        "ours", "SDPA with mask", "SDPA causal, no slots", "eager", "FlexAttention",
        "two varlen calls",
    }  # fmt: skip
    assert found["eager"] == "its scores would take more than 8 GiB"


def test_the_shapes_of_the_specification_are_measured_on_a_gpu():
    found = cases.attention_cases(on_gpu=True, quick=False)
    assert {(c.rows, c.tokens) for c in found} == {(8, 512), (8, 2048), (2, 8192)}
    assert {c.head_width for c in found} == {64, 128}
    assert {c.num_slots for c in found} == {0, 1, 4}
    assert {c.mask for c in found} == {"causal", "prefix", "4 documents", "16 documents"}
    assert all(c.heads * c.head_width == 1024 for c in found)


def test_rows_become_a_table_with_reasons_below():
    case = AttentionCase(1, 16, 1, 8, "causal", 0)
    rows = list(measure.attention_rows([case], "cpu", rounds=1))
    rows.append(measure._left_out("another", "FlexAttention", "it was not asked for"))
    table = as_table(rows)
    assert "| 1 x 16, 1 heads x 8, causal, M = 0 | ours | " in table
    assert table.endswith("Left out of 1 cases: FlexAttention, because it was not asked for.")


def test_red_tests_are_shown_and_nothing_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(command, "_red_tests", lambda device: "1 failed")
    monkeypatch.setattr(measure, "attention_rows", lambda *_: pytest.fail("measured"))
    monkeypatch.setattr("sys.argv", ["kernels.benchmark"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 1
    assert "1 failed" in capsys.readouterr().out


@pytest.mark.parametrize("num_slots", [0, 2])
def test_the_block_mask_of_flex_attention_shows_what_the_visibility_shows(monkeypatch, num_slots):
    from torch.nn.attention.flex_attention import flex_attention

    monkeypatch.setattr(contestants, "_compiled_flex", lambda: flex_attention)
    case = AttentionCase(2, 24, 2, 16, "4 documents", num_slots)
    tensors, _ = measure.inputs(case, "cpu")
    tensors = [t.detach() for t in tensors]
    visibility = case.visibility("cpu")
    out = contestants._flex(case, visibility)(*tensors)
    assert torch.allclose(out, contestants._reference(visibility)(*tensors), atol=1e-5)


def test_two_calls_over_prefixes_and_the_rest_give_the_whole(monkeypatch):
    """With a plain loop over documents in the place of varlen_attn, which wants a GPU."""
    from torch.nn.attention import varlen

    def loop(q, k, v, starts_q, starts_k, max_q, max_k, *, window_size=(-1, -1)):
        out = torch.empty_like(q)
        bounds = (starts_q[:-1], starts_q[1:], starts_k[:-1], starts_k[1:])
        for a, b, c, d in zip(*bounds, strict=True):
            heads = [t[None].transpose(1, 2) for t in (q[a:b], k[c:d], v[c:d])]
            mask = torch.ones(b - a, d - c, dtype=torch.bool)
            if window_size == (-1, 0):
                mask = mask.tril(diagonal=int((d - c) - (b - a)))
            found = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask)
            out[a:b] = found.transpose(1, 2)[0]
        return out

    loop.__signature__ = inspect.signature(varlen.varlen_attn)
    monkeypatch.setattr(varlen, "varlen_attn", loop)
    case = AttentionCase(2, 24, 2, 16, "4 documents", 0)
    tensors = [t.detach() for t in measure.inputs(case, "cpu")[0]]
    out = contestants._two_calls(case, "cpu")(*tensors)
    expected = contestants._reference(case.visibility("cpu"))(*tensors)
    assert torch.allclose(out, expected, atol=1e-5)
