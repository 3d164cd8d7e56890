"""Plans by hand: given spans, what is counted, and what is refused."""

import numpy as np
import pytest

from data_pipeline.transforms.blank import plan_from_spans


def given(spans, length=10, **settings):
    return plan_from_spans([spans], source_lengths=[length], ends_document=[True], **settings)


def test_given_spans_keep_their_order_and_size():
    plan = given([(7, 9), (1, 4)], kind="sentence", prompt=[0])
    assert plan.start_S.tolist() == [7, 1]
    assert plan.length_S.tolist() == [2, 3]
    assert plan.written_S.tolist() == [3, 4]
    assert plan.sep_N.tolist() == [7]
    assert plan.row_lengths_N.tolist() == [14]
    assert plan.num_targets_N.tolist() == [7]
    assert plan.kind_N.tolist() == [2]


def test_a_suffix_writes_as_many_tokens_as_it_covers():
    plan = given([(4, 10)], suffix=True, kind="document")
    assert plan.written_S.tolist() == [6]
    assert plan.sep_N.tolist() == [5]
    assert plan.row_lengths_N.tolist() == [11]
    assert given([(4, 10)], suffix=True, prompt=[5]).num_targets_N.tolist() == [4]
    assert given([(4, 10)], suffix=True, prompt=[3]).num_targets_N.tolist() == [6]


def test_what_was_lost_is_named():
    plan = plan_from_spans(
        [[(1, 3)], [], [(2, 3)]],
        source_lengths=[5, 4, 6],
        ends_document=[True, True, True],
        kind="single",
    )
    changed = {
        "spans_lost_N": np.array([1, 2, 0]),
        "spans_unplaced_N": np.array([0, 4, 0]),
        "tokens_clipped_N": np.array([8, 0, 8]),
    }
    counts = type(plan)(**{**plan.__dict__, **changed}).counts()
    assert counts == {
        "spans": 2,
        "spans_lost_no_room_in_row": 3,
        "spans_lost_text_too_short": 4,
        "span_tokens_clipped": 16,
        "pieces_without_target": 1,
        "targets_token": 0,
        "targets_sentence": 0,
        "targets_document": 0,
        "targets_single": 5,
        "targets_whole": 0,
    }


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(0, 2)], r"span \[0, 2\) must lie in \[1, 10\)"),
        ([(3, 3)], r"span \[3, 3\) must lie in \[1, 10\)"),
        ([(5, 11)], r"span \[5, 11\) must lie in \[1, 10\)"),
        ([(6, 8), (2, 7)], r"span \[6, 8\) must lie in \[7, 10\)"),
    ],
)
def test_spans_outside_the_text_or_overlapping_are_refused(spans, message):
    with pytest.raises(ValueError, match=message):
        given(spans)


def test_neighbouring_spans_and_the_last_token_are_allowed():
    assert given([(5, 10), (1, 5)]).sep_N.tolist() == [3]


def test_a_suffix_is_one_span_to_the_end():
    for spans in ([(4, 9)], [(2, 3), (4, 10)], []):
        with pytest.raises(ValueError, match="a suffix is one span up to token 10"):
            given(spans, suffix=True)


def test_spans_and_lengths_must_agree():
    with pytest.raises(ValueError, match="for 2 texts, lengths for 1"):
        plan_from_spans([[], []], source_lengths=[4], ends_document=[True])
