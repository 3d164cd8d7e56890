"""Specials are found by name or appended in order, and share an id only where it is declared."""

import pytest

from data_pipeline.tokenizing.special import SPECIALS, check_aliases, parse_aliases, place_specials


def place(found: dict[str, int], num_pieces: int, **aliases: str) -> tuple[dict[str, int], int]:
    special, vocab_size = place_specials(found.get, num_pieces, aliases)
    return special.by_name(), vocab_size


def test_missing_specials_follow_the_last_id_in_order():
    ids, vocab_size = place({}, 100)
    assert ids == dict(zip(SPECIALS, range(100, 111), strict=True))
    assert vocab_size == 111


def test_bert_with_pad_as_eos_gets_the_published_ids():
    # GLM's table: pad=eos 0, CLS 101, MASK 103, SEP 102, UNK 100, then sop ... dBLOCK.
    found = {"pad": 0, "cls": 101, "mask": 103, "sep": 102, "unk": 100}
    ids, vocab_size = place(found, 30522, pad="eos")
    assert (ids["pad"], ids["eos"], ids["cls"]) == (0, 0, 101)
    assert [ids[n] for n in ("sop", "eop", "gmask", "smask", "dblock")] == [
        30522,
        30523,
        30524,
        30525,
        30526,
    ]
    assert vocab_size == 30527


def test_an_alias_takes_the_id_of_its_target():
    ids, vocab_size = place({"eos": 50256}, 50257, pad="eos", sep="eos")
    assert ids["pad"] == ids["sep"] == ids["eos"] == 50256
    assert vocab_size == 50257 + 8


def test_aliases_may_form_a_chain():
    ids, _ = place({"sep": 7}, 50, pad="eos", eos="sep")
    assert ids["pad"] == ids["eos"] == ids["sep"] == 7


@pytest.mark.parametrize(
    ("aliases", "says"),
    [
        ({"gmask": "eop"}, "ids of their own.*gmask is then appended"),
        ({"eop": "gmask"}, "ids of their own"),
        ({"sop": "eop"}, "ids of their own"),
        ({"eos": "unk"}, "ids of their own"),
        ({"pad": "end"}, "'end' is no special; allowed: pad, eos"),
        ({"pad": "pad"}, "says nothing"),
        ({"pad": "eos", "eos": "pad"}, "in a circle"),
    ],
)
def test_wrong_aliases_are_refused(aliases, says):
    with pytest.raises(ValueError, match=says):
        check_aliases(aliases)


def test_gmask_with_the_id_of_eop_is_refused_with_the_fix():
    with pytest.raises(ValueError, match=r"eop and gmask the same id 50007.*rename the piece"):
        place({"eop": 50007, "gmask": 50007}, 50010)


def test_a_shared_id_that_could_be_meant_names_the_alias():
    with pytest.raises(ValueError, match="--alias sep=eos"):
        place({"eos": 2, "sep": 2}, 10)


def test_masks_may_share_one_id_where_declared():
    ids, _ = place({"mask": 3}, 10, gmask="mask", smask="mask")
    assert ids["gmask"] == ids["smask"] == 3


@pytest.mark.parametrize("pairs", [["pad"], ["pad="], ["=eos"], ["pad=eos", "pad=sep"]])
def test_aliases_have_the_form_name_equals_name(pairs):
    with pytest.raises(ValueError, match="--alias"):
        parse_aliases(pairs)
