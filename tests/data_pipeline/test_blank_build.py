"""Rows as the published code builds them: all its cases, and the pictures of the paper."""

import json
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.rows import KINDS, Rows
from data_pipeline.tokenizing.special import SpecialIds
from data_pipeline.transforms.blank import BlankConfig, BlankTransform, plan_from_spans

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/glm/data_blocks.json").read_text())
CASES = {case["name"]: case for case in GOLDEN["cases"]}
IDS = GOLDEN["special_tokens"]
SPECIAL = SpecialIds(
    cls=IDS["ENC"],
    **{name.lower(): IDS[name] for name in IDS if name != "ENC" and not name[-1].isdigit()},
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


def test_a_prompt_written_in_part_b_carries_no_loss():
    # the published unidirectional form: all but CLS is written, the prompt 20 21 22 without loss
    rows = build([102, 20, 21, 22, 50, 51], [(1, 6)], prompt=3)
    assert rows.sep_N.tolist() == [2]
    assert rows.ids.tolist() == [102, 103, 105, 20, 21, 22, 50, 51]
    assert rows.targets[2:].tolist() == [20, 21, 22, 50, 51, 106]
    assert rows.weights.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert rows.kind.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert rows.position.tolist() == [0, 1, 1, 1, 1, 1, 1, 1]
    assert rows.block_position.tolist() == [0, 0, 1, 2, 3, 4, 5, 6]


def test_a_language_model_row_is_a_suffix_after_one_token():
    # the published unidirectional evaluation window over tokens 20..43
    text = list(range(20, 44))
    rows = build([102, *text], [(2, 25)], kind="document", suffix=True)
    assert rows.sep_N.tolist() == [3]
    assert rows.ids.tolist() == [102, 20, 107, 105, *range(21, 43)]
    assert rows.targets.tolist() == [102, 20, 107, *range(21, 44)]
    assert rows.weights.tolist() == [0] * 3 + [1] * 23
    assert rows.position.tolist() == [0, 1] + [2] * 24
    assert rows.block_position.tolist() == [0, 0, 0, *range(1, 24)]


def test_a_cloze_row_is_a_blank_with_a_given_answer():
    # the published multi-token cloze: 20 21 M 22 | 30 31 10, answer 50 51 52
    rows = build([102, 20, 21, 50, 51, 52, 22, 30, 31, 10, 100], [(3, 6)])
    assert rows.sep_N.tolist() == [9]
    assert rows.ids.tolist() == [102, 20, 21, 103, 22, 30, 31, 10, 100, 105, 50, 51, 52]
    assert rows.targets[9:].tolist() == [50, 51, 52, 106]
    assert rows.position.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 3, 3, 3, 3]


def test_rows_of_several_pieces_lie_end_to_end():
    first = build([102, 1, 2, 3, 4, 5, 6, 100], [(5, 7), (3, 4)])
    second = build([102, 7, 8], [(1, 2)])
    third = build([102, 9, 100], [])
    plan = plan_from_spans(
        [[(5, 7), (3, 4)], [(1, 2)], []],
        source_lengths=[8, 3, 3],
        ends_document=[True, False, True],
    )
    transform = BlankTransform(BlankConfig(), SPECIAL, source_tokens=48, vocab_size=110)
    rows = transform.build(np.array([1, 2, 3, 4, 5, 6, 7, 8, 9]), plan)
    for name in (*FIELD_OF_OUTPUT.values(), "kind", "lengths_N", "sep_N"):
        parts = [getattr(each, name) for each in (first, second, third)]
        assert getattr(rows, name).tolist() == np.concatenate(parts).tolist()


def test_a_span_that_ends_with_its_text_leaves_the_next_text_whole():
    plan = plan_from_spans(
        [[(2, 4)], [(1, 2)]], source_lengths=[4, 3], ends_document=[False, False]
    )
    transform = BlankTransform(BlankConfig(), SPECIAL, source_tokens=48, vocab_size=110)
    rows = transform.build(np.array([1, 2, 3, 4, 5]), plan)
    assert rows.ids.tolist() == [102, 1, 103, 105, 2, 3, 102, 103, 5, 105, 4]


def test_no_piece_gives_no_row():
    plan = plan_from_spans([], source_lengths=[], ends_document=[])
    transform = BlankTransform(BlankConfig(), SPECIAL, source_tokens=48, vocab_size=110)
    rows = transform.build(np.zeros(0, np.int32), plan)
    assert len(rows.ids) == len(rows.lengths_N) == 0


def test_flat_arrays_have_the_dtypes_of_the_contract():
    rows = build([102, 1, 2, 3, 100], [(2, 3)], block_mask_prob=0.5, span_marks="sentinels")
    int32 = ("ids", "position", "block_position", "targets")
    assert {getattr(rows, name).dtype for name in int32} == {np.dtype(np.int32)}
    assert rows.weights.dtype == np.float32
    assert rows.kind.dtype == np.uint8


def test_mask_tokens_follow_the_kind():
    for kind, mask in (("token", 103), ("single", 103), ("sentence", 108), ("document", 107)):
        assert build([102, 1, 2, 3, 100], [(2, 3)], kind=kind).ids[2] == mask
        assert build([102, 1, 2, 3, 100], [(2, 3)], kind=kind, mask_tokens="single").ids[2] == 103


def replaced_share(kind: str, suffix: bool = False) -> float:
    """Share of 40 texts' 30 decoder input tokens that [dBLOCK] replaces."""
    replaced = 0
    for key in range(1, 41):
        end = 32 if suffix else 31
        rows = build(
            [102, *range(16, 46), 100],
            [(1, end)],
            kind=kind,
            suffix=suffix,
            keys=[key * 7919],
            block_mask_prob=0.1,
        )
        assert rows.targets.tolist().count(SPECIAL.dblock) == 0
        replaced += rows.ids.tolist().count(SPECIAL.dblock)
    return replaced / (40 * 30)


def test_dblock_replaces_its_share_of_token_level_inputs_only():
    sigma = (0.1 * 0.9 / 1200) ** 0.5
    assert abs(replaced_share("token") - 0.1) < 4 * sigma
    assert abs(replaced_share("single") - 0.1) < 4 * sigma
    assert replaced_share("sentence") == 0
    assert replaced_share("document") == 0
    assert replaced_share("document", suffix=True) == 0


def test_dblock_never_hides_the_start_of_a_span():
    text = [102, *range(16, 46), 100]
    rows = build(text, [(start, start + 1) for start in range(1, 30, 2)], block_mask_prob=1.0)
    assert rows.ids[rows.block_position == 1].tolist() == [105] * 15
    assert rows.ids[rows.block_position == 2].tolist() == [109] * 15
    assert rows.targets[rows.block_position == 1].tolist() == list(range(16, 45, 2))


def test_dblock_depends_on_the_key_and_the_token_only():
    text = [102, *range(16, 46), 100]
    hidden_1 = build(text, [(1, 31)], keys=[1], block_mask_prob=0.5).ids == 109
    hidden_2 = build(text, [(1, 31)], keys=[2], block_mask_prob=0.5).ids == 109
    assert hidden_1.any()
    assert (hidden_1 != hidden_2).any()
    # the same tokens in two spans, written in the other order
    halves = build(text, [(16, 31), (1, 16)], keys=[1], block_mask_prob=0.5)
    second, first = halves.ids[3 + 2 :][:15], halves.ids[3 + 2 + 16 :][:15]
    whole = build(text, [(1, 31)], keys=[1], block_mask_prob=0.5).ids[3 + 1 :]
    assert (first == 109).tolist() == (whole[:15] == 109).tolist()
    assert (second == 109).tolist() == (whole[15:] == 109).tolist()


def test_sentinels_reach_for_as_many_blanks_as_a_text_can_get():
    config = BlankConfig(span_marks="sentinels", sentence_ratio=0.2)
    transform = BlankTransform(config, SPECIAL, source_tokens=48, vocab_size=110)
    # floor(0.2 * 48) = 9 blanks: MASK, and MASK1..MASK8 each with a sop
    assert transform.vocab_size == 110 + 2 * 8
    text = [102, *range(16, 46), 100]
    nine = [(start, start + 1) for start in range(1, 18, 2)]
    rows = build(text, nine, span_marks="sentinels", sentence_ratio=0.2)
    assert rows.ids.max() == transform.vocab_size - 1
    with pytest.raises(ValueError, match="10 blanks, the sentinels reach for 9"):
        build(text, [*nine, (20, 21)], span_marks="sentinels", sentence_ratio=0.2)


def test_without_sentinels_the_vocabulary_stays():
    transform = BlankTransform(BlankConfig(), SPECIAL, source_tokens=48, vocab_size=110)
    assert transform.vocab_size == 110


def test_a_wrong_number_of_tokens_is_refused():
    plan = plan_from_spans([[(1, 2)]], source_lengths=[5], ends_document=[True])
    transform = BlankTransform(BlankConfig(), SPECIAL, source_tokens=48, vocab_size=110)
    with pytest.raises(ValueError, match="plan is for 3 stored tokens, got 4"):
        transform.build(np.arange(4), plan)
