"""Rows as the published code builds them: all its cases, and the pictures of the paper."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from data_pipeline.rows import KINDS, Rows
from data_pipeline.transforms.blank import BlankConfig, BlankTransform, plan_from_spans

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/glm/data_blocks.json").read_text())
CASES = {case["name"]: case for case in GOLDEN["cases"]}
IDS = GOLDEN["special_tokens"]
SPECIAL = SimpleNamespace(
    **{name.lower(): id_ for name, id_ in IDS.items() if name != "ENC"}, cls=IDS["ENC"]
)
KIND_OF_TASK = {
    "bert": "token",
    "gap_sentence": "sentence",
    "generation": "document",
    "generation_suffix": "document",
}
FIELD_OF_OUTPUT = {
    "tokens": "ids",
    "targets": "targets",
    "loss_mask": "weights",
    "position_ids": "position",
    "block_position_ids": "block_position",
}


def build(tokens, spans, *, prompt=0, kind="token", suffix=False, keys=None, **settings) -> Rows:
    """The row of one text whose special tokens are written out."""
    ends = tokens[-1] == IDS["eos"]
    plan = plan_from_spans(
        [spans],
        source_lengths=[len(tokens)],
        ends_document=[ends],
        prompt=[prompt],
        kind=kind,
        suffix=suffix,
        keys=keys,
    )
    transform = BlankTransform(BlankConfig(**settings), SPECIAL, source_tokens=48, vocab_size=110)
    rows = transform.build(np.array(tokens[1 : len(tokens) - ends]), plan)
    assert rows.lengths_N.tolist() == plan.row_lengths_N.tolist() == [len(rows.ids)]
    assert rows.weights.sum() == plan.num_targets_N.sum()
    return rows


def build_case(case: dict) -> Rows:
    options, tokens = case["options"], case["input_tokens"]
    settings = {}
    if options.get("block_position_encoding") is False:
        settings["block_positions"] = "none"
    if options.get("task_mask") is False:
        settings["mask_tokens"] = "single"
    if options.get("sentinel_token"):
        settings["span_marks"] = "sentinels"
    if "block_mask_prob" in options:
        settings["block_mask_prob"] = options["block_mask_prob"]
    if options.get("shuffle_blocks") is False:
        settings["span_order"] = "text"
    suffix = case["task"] == "generation_suffix"
    if suffix:
        num_written = min(case["generation_length"], len(tokens) - 2)
        spans = [(len(tokens) - num_written, len(tokens))]
        prompt = case["input_loss_mask"].index(1) - 1 if 0 in case["input_loss_mask"] else 0
    else:
        spans, prompt = [tuple(span) for span in case["spans_in_target_order"]], 0
    kind = KIND_OF_TASK[case["task"]]
    return build(tokens, spans, prompt=prompt, kind=kind, suffix=suffix, **settings)


@pytest.mark.golden
@pytest.mark.parametrize("name", CASES)
def test_published_rows_are_built_exactly(name):
    case = CASES[name]
    rows = build_case(case)
    num_tokens = len(rows.ids)
    padding = case.get("padded_to", num_tokens) - num_tokens
    assert rows.sep_N.tolist() == [case["out"]["sep"]]
    for output, field in FIELD_OF_OUTPUT.items():
        expected = case["out"][output]
        assert len(expected) == num_tokens + padding
        ours = getattr(rows, field).astype(int)
        if "block_mask_prob" in case["options"] and field == "ids":
            ours, expected = hide_dblock(ours, expected)
        assert ours.tolist() == list(expected[:num_tokens])
        assert not any(expected[num_tokens:])


def hide_dblock(ours, expected):
    """Both rows with every decoder input hidden that [dBLOCK] replaced in either."""
    hidden = (ours == IDS["dBLOCK"]) | (np.array(expected) == IDS["dBLOCK"])
    return np.where(hidden, 0, ours), np.where(hidden, 0, expected).tolist()


def test_all_eighteen_published_cases_are_here():
    assert len(CASES) == 18


@pytest.mark.golden
def test_the_kind_stands_at_targets_only():
    for case in CASES.values():
        rows = build_case(case)
        kind = KINDS.index(KIND_OF_TASK[case["task"]])
        assert rows.kind.tolist() == (kind * rows.weights).astype(int).tolist()
