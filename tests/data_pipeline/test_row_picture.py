"""The picture of a row, compared with a literal one."""

import numpy as np

from data_pipeline.packing.pack import pack_rows, padding_rows
from data_pipeline.row_picture import cells, draw_row, printable
from data_pipeline.tokenizing.special import SpecialIds
from data_pipeline.transforms.blank import BlankConfig, BlankTransform, plan_from_spans

SPECIAL = SpecialIds(100, 100, 102, 103, 101, 104, 105, 106, 107, 108, 109)
NAMES = {100: "[EOS]", 102: "[CLS]", 103: "[MASK]", 105: "<sop>", 106: "<eop>", 107: "[gMASK]"}


def pieces(ids, names=NAMES) -> list[str]:
    return [names.get(int(id_), str(id_)) for id_ in ids]


def packed_row(spans, lengths, row_tokens, **settings):
    """One packed row of texts 1, 2, 3, ... with the given spans."""
    plan = plan_from_spans(
        spans, source_lengths=lengths, ends_document=[True] * len(lengths), **settings
    )
    transform = BlankTransform(BlankConfig(), SPECIAL, source_tokens=48, vocab_size=110)
    tokens = np.concatenate([np.arange(1, length - 1) for length in lengths])
    return pack_rows(transform.build(tokens, plan), np.array([len(lengths)]), row_tokens)


WORKED_EXAMPLE = """\
text 0
 i  token   target  loss   pos  block  sees     012345678901
 0  [CLS]                    0      0  [0, 7)   #######.....
 1  1                        1      0  [0, 7)   #######.....
 2  2                        2      0  [0, 7)   #######.....
 3  [MASK]                   3      0  [0, 7)   #######.....
 4  4                        4      0  [0, 7)   #######.....
 5  [MASK]                   5      0  [0, 7)   #######.....
 6  [EOS]                    6      0  [0, 7)   #######.....
------------------------------------------------------------
 7  <sop>   5       token    5      1  [0, 8)   ########....
 8  5       6       token    5      2  [0, 9)   #########...
 9  6       <eop>   token    5      3  [0, 10)  ##########..
10  <sop>   3       token    3      1  [0, 11)  ###########.
11  3       <eop>   token    3      2  [0, 12)  ############
"""


def test_the_worked_example_is_drawn_as_in_the_paper():
    packed = packed_row([[(5, 7), (3, 4)]], [8], 12)
    assert draw_row(packed, 0, pieces, captions=["text 0"]) == WORKED_EXAMPLE


TWO_DOCUMENTS = """\
first
i  token    target  loss      pos  block  sees    012345
0  [CLS]                        0      0  [0, 3)  ###...
1  1                            1      0  [0, 3)  ###...
2  [gMASK]                      2      0  [0, 3)  ###...
--------------------------------------------------------
3  <sop>                        2      1  [0, 4)  ####..
4  2        3       document    2      2  [0, 5)  #####.
5  3        [EOS]   document    2      3  [0, 6)  ######

document 1 of the row
i  token    target  loss      pos  block  sees     6789
6  [CLS]                        0      0  [6, 8)   ##..
7  [gMASK]                      1      0  [6, 8)   ##..
-------------------------------------------------------
8  <sop>    1       document    1      1  [6, 9)   ###.
9  1        [EOS]   document    1      2  [6, 10)  ####

1 of 11 positions are padding
"""


def test_documents_of_a_packed_row_see_only_themselves():
    packed = packed_row(
        [[(2, 5)], [(1, 3)]], [5, 3], 11, suffix=True, kind="document", prompt=[2, 0]
    )
    drawn = draw_row(packed, 0, pieces, captions=["first"])
    assert drawn == TWO_DOCUMENTS


def test_long_rows_are_drawn_without_their_mask():
    packed = packed_row([[(5, 7), (3, 4)]], [8], 12)
    drawn = draw_row(packed, 0, pieces, captions=["text 0"], picture_tokens=11)
    with_mask = WORKED_EXAMPLE.splitlines()
    expected = [line[:46].rstrip() for line in with_mask]
    expected[9] = expected[9][: max(len(line) for line in expected[1:9])]
    assert [line.rstrip("-") for line in drawn.splitlines()] == [
        line.rstrip("-") for line in expected
    ]
    assert draw_row(packed, 0, pieces, captions=["text 0"], picture_tokens=12) == WORKED_EXAMPLE


def test_rows_without_a_blank_have_no_rule():
    drawn = draw_row(packed_row([[]], [4], 4), 0, pieces)
    assert "--" not in drawn
    assert len(drawn.splitlines()) == 1 + 1 + 4


def test_padding_is_counted_and_nothing_else_drawn():
    assert draw_row(padding_rows(2, 5), 1, pieces) == "5 of 5 positions are padding\n"


def test_only_the_row_asked_for_is_drawn():
    plan = plan_from_spans([[(1, 2)], [(2, 3)]], source_lengths=[4, 4], ends_document=[True, True])
    transform = BlankTransform(BlankConfig(), SPECIAL, source_tokens=48, vocab_size=110)
    packed = pack_rows(transform.build(np.array([1, 2, 3, 4]), plan), np.array([1, 1]), 6)
    second = draw_row(packed, 1, pieces)
    assert [line.split()[1] for line in second.splitlines()[2:6]] == [
        "[CLS]",
        "3",
        "[MASK]",
        "[EOS]",
    ]


def test_wide_characters_take_two_cells():
    names = {**NAMES, 1: "春天", 2: "e\u0301", 3: "🙂", 4: "x"}
    packed = packed_row([[(2, 4)]], [6], 8)
    lines = draw_row(packed, 0, lambda ids: pieces(ids, names)).splitlines()
    # "loss" stands in the same cell of every line
    starts = {cells(line[: line.index("token", 20)]) for line in lines if "token" in line[20:]}
    assert len(starts) == 1
    assert "春天" in lines[3]
    assert cells("春天") == 4
    assert cells("e\u0301") == 1
    assert cells("🙂") == 2
    assert cells("ｘ") == 2
    seen = {cells(line) for line in lines[2:] if line.endswith((".", "#"))}
    assert len(seen) == 1


def test_what_has_no_picture_is_written_as_an_escape():
    assert printable("a\nb") == "a\\nb"
    assert printable("\x00\t") == "\\x00\\t"
    assert printable("▁word") == "▁word"
    assert printable("\ufffd") == "\ufffd"
    assert printable("e\u0301") == "e\u0301"
