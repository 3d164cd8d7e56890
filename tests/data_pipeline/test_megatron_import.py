"""Indexed datasets of Megatron-LM become shards: the same ids, none of another tokenizer."""

import json
import struct
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.__main__ import main
from data_pipeline.preparing import megatron_documents
from data_pipeline.preparing.megatron_files import ID_TYPES, IndexedFiles
from data_pipeline.preparing.prepare import PrepareSettings, prepare
from data_pipeline.storage.shards import open_shards
from data_pipeline.storage.verify import verify
from data_pipeline.tokenizing.tokenizer import Tokenizer, open_tokenizer

CODES = {np.dtype(name): code for code, name in ID_TYPES.items()}
Documents = list[list[list[int]]]  # of each document its sequences


def write_indexed(prefix: Path, documents: Documents, dtype: str = "int32") -> Path:
    """The two files as the published format has them: written field by field."""
    itemsize = np.dtype(dtype).itemsize
    sequences = [s for d in documents for s in d]
    starts = [0, *accumulate(len(s) for s in sequences)]
    firsts = [0, *accumulate(len(d) for d in documents)]
    prefix.with_suffix(".bin").write_bytes(
        b"".join(np.array(s, np.dtype(dtype).newbyteorder("<")).tobytes() for s in sequences)
    )
    prefix.with_suffix(".idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, CODES[np.dtype(dtype)], len(sequences), len(firsts))
        + struct.pack(f"<{len(sequences)}i", *(len(s) for s in sequences))
        + struct.pack(f"<{len(sequences)}q", *(itemsize * s for s in starts[:-1]))
        + struct.pack(f"<{len(firsts)}q", *firsts)
    )
    return prefix


def texts(corpus_file: Path) -> list[str]:
    return corpus_file.read_text().splitlines()


def as_documents(tokenizer: Tokenizer, corpus: list[str], end_id: int | None = None) -> Documents:
    end = [] if end_id is None else [end_id]
    return [[[*ids.tolist(), *end]] for ids in tokenizer.encode(corpus)]


@pytest.fixture
def import_them(tmp_path, capsys, caplog):
    """Runs the command into tmp_path / "shards" and gives its exit code and what it said."""

    def run(prefix: object, tokenizer: Path, *options: object) -> tuple[int, str]:
        caplog.clear()
        words = ["import-megatron", "--input", prefix, "--tokenizer", tokenizer]
        code = main([str(a) for a in [*words, "--output", tmp_path / "shards", *options]])
        return code, capsys.readouterr().err + caplog.text

    return run


def split_arrays(folder: Path, name: str = "train") -> list[list[int]]:
    split = open_shards(folder).splits[name]
    all_N = np.arange(split.num_documents)
    lengths_N = split.lengths(all_N)
    ids = split.tokens(all_N, np.zeros_like(all_N), lengths_N)
    ends, offsets = split.sentence_ends(all_N)
    return [a.tolist() for a in (lengths_N, ids, ends, offsets)]


@pytest.mark.parametrize("fixture", ["model_file", "byte_bpe_folder", "wordpiece_folder"])
def test_imported_ids_are_those_that_prepare_makes(
    fixture, request, tmp_path, corpus_file, import_them
):
    """Also the sentence ends, and which documents go to validation."""
    source = request.getfixturevalue(fixture)
    tokenizer = open_tokenizer(source)
    corpus = [t.lower() for t in texts(corpus_file)]  # wordpieces here know small letters alone
    (tmp_path / "corpus.txt").write_text("\n".join(corpus))
    prepare(
        PrepareSettings(
            input=[str(tmp_path / "corpus.txt")],
            tokenizer=str(source),
            output=str(tmp_path / "prepared"),
            validation=0.2,
        )
    )
    prefix = write_indexed(tmp_path / "x", as_documents(tokenizer, corpus))
    code, log = import_them(prefix, source, "--validation", 0.2)
    assert code == 0 and "300 of 300 stretches of text gave the same ids" in log
    for split in ("train", "validation"):
        imported = split_arrays(tmp_path / "shards", split)
        assert imported == split_arrays(tmp_path / "prepared", split)
    shards = open_shards(tmp_path / "shards")
    assert verify(shards.folder, shards.manifest) == []
    assert [Path(s.path).name for s in shards.manifest.sources] == ["x.bin", "x.idx"]
    assert [s.documents for s in shards.manifest.sources] == [300, 0]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint16", "int32", "int64"])
def test_ids_of_every_type_are_read(dtype, tmp_path, import_them):
    from tokenizers import Tokenizer as Words
    from tokenizers import models, pre_tokenizers

    words = Words(models.WordLevel({f"w{n}": n for n in range(100)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "words.json"))
    documents = [[[1, 2, 3]], [[99]], [[5] * 40]]
    prefix = write_indexed(tmp_path / "x", documents, dtype)
    assert import_them(f"{prefix}.idx", tmp_path / "words.json")[0] == 0
    lengths, ids, _, _ = split_arrays(tmp_path / "shards")
    assert lengths == [3, 1, 40] and ids == [1, 2, 3, 99, *[5] * 40]


@pytest.fixture(scope="module")
def gpt_like(byte_bpe_folder) -> tuple[Path, Tokenizer, int]:
    tokenizer = open_tokenizer(byte_bpe_folder)
    return byte_bpe_folder, tokenizer, tokenizer.special.eos


def test_end_of_document_ids_are_taken_off_and_said(gpt_like, tmp_path, corpus_file, import_them):
    folder, tokenizer, eos = gpt_like
    plain = as_documents(tokenizer, texts(corpus_file)[:50])
    ended = [[[*sequence, eos] for sequence in document] for document in plain]
    prefix = write_indexed(tmp_path / "x", [*ended, [[eos]], [[]], []])
    code, log = import_them(prefix, folder)
    assert code == 0
    assert f"51 of 53 documents ended with the id {eos} ([EOS]), which was taken off" in log
    lengths, ids, _, _ = split_arrays(tmp_path / "shards")
    assert lengths == [len(d[0]) for d in plain] and ids == [i for d in plain for i in d[0]]
    manifest = open_shards(tmp_path / "shards").manifest
    assert manifest.skipped == {"blank": 3} and manifest.cleaned == {"end_ids": 51}
    assert manifest.settings["end_id"] == eos


def test_another_end_id_is_taken_off_where_named(gpt_like, tmp_path, corpus_file, import_them):
    folder, tokenizer, _ = gpt_like
    newline = int(tokenizer.encode(["\n"])[0][0])
    documents = as_documents(tokenizer, texts(corpus_file)[:20], newline)
    prefix = write_indexed(tmp_path / "x", documents)
    assert import_them(prefix, folder, "--end-id", newline)[0] == 0
    assert split_arrays(tmp_path / "shards")[0] == [len(d[0]) - 1 for d in documents]


def test_without_an_end_id_one_that_is_there_is_a_control_id(gpt_like, tmp_path, import_them):
    folder, tokenizer, eos = gpt_like
    prefix = write_indexed(tmp_path / "x", as_documents(tokenizer, ["the river"] * 3, eos))
    code, log = import_them(prefix, folder, "--end-id", "none")
    place = len(tokenizer.encode(["the river"])[0])
    assert code == 2
    assert f"x.bin: document 0 holds the control id {eos} ([EOS]) at {place}, which no text" in log
    assert not (tmp_path / "shards").exists()


def test_sequences_of_a_document_are_its_sentences(gpt_like, tmp_path, corpus_file, import_them):
    folder, tokenizer, eos = gpt_like
    sentences = [ids.tolist() for ids in tokenizer.encode(["The river rose", "no mark here", "So"])]
    documents = [
        [*sentences[:2], [*sentences[2], eos]],
        [sentences[1], [], [eos]],  # an empty sequence, and one of the end alone
        [[], sentences[0]],
    ]
    prefix = write_indexed(tmp_path / "x", documents)
    code, log = import_them(prefix, folder)
    assert code == 0 and "5 of 5 stretches of text gave the same ids" in log
    _, _, ends, offsets = split_arrays(tmp_path / "shards")
    a, b, c = map(len, sentences)
    found = [ends[start:stop] for start, stop in pairwise(offsets)]
    assert found == [[a, a + b, a + b + c], [b], [a]]


def test_ids_cut_in_another_way_keep_their_sentences(gpt_like, tmp_path, import_them):
    """Single bytes, as BPE dropout gives: the text is the same, its ids are not."""
    folder, tokenizer, _ = gpt_like
    text = "The river. It is 3.14, caf\u00e9! So"
    letters = [int(i) for c in text for i in tokenizer.encode([c])[0]]
    canonical = tokenizer.encode([text])[0].tolist()
    assert letters != canonical and tokenizer.decode(letters) == text
    prefix = write_indexed(tmp_path / "x", [[canonical], [letters], [canonical]])
    assert import_them(prefix, folder)[0] == 0
    _, ids, ends, offsets = split_arrays(tmp_path / "shards")
    assert ids == [*canonical, *letters, *canonical]
    shown = [tokenizer.decode(letters[:end]) for end in ends[offsets[1] : offsets[2]]]
    assert shown == ["The river.", "The river. It is 3.14, caf\u00e9!", text]


def test_ids_of_another_tokenizer_are_refused(
    gpt_like, model_file, tmp_path, corpus_file, import_them
):
    _, other, _ = gpt_like
    few = [ids[ids > 10] for ids in other.encode(texts(corpus_file))]  # no control id of either
    prefix = write_indexed(tmp_path / "x", [[ids.tolist()] for ids in few])
    code, log = import_them(prefix, model_file)
    assert code == 2 and "are the ids of another tokenizer. Name the right one" in log
    assert import_them(prefix, model_file, "--retokenize", "ignore")[0] == 0


@pytest.mark.parametrize(
    ("ids", "options", "says"),
    [
        ([5, 300], [], "document 1 holds the id 300 at 1, outside the tokenizer's own vocabulary"),
        ([5, -1], [], "document 1 holds the id -1 at 1, outside .* [0, 300)"),
        ([5, 0, 6], [], r"document 1 holds the control id 0 \(\[EOS\]\) at 1"),
        ([5], ["--vocab-size", 50257], "says 50257 ids, the tokenizer .* has 300 by itself"),
        ([5], ["--end-id", 300], r"must be auto, none or lie in \[0, 300\), got 300"),
        ([5], ["--end-id", "eod"], "--end-id must be auto, none or the number of an id, got eod"),
        ([5], ["--validation", 1.5], r"--validation must lie in \[0, 1\)"),
    ],
)
def test_what_is_not_of_the_tokenizer_is_refused(
    gpt_like, ids, options, says, tmp_path, import_them
):
    import re

    prefix = write_indexed(tmp_path / "x", [[[40, 41]], [ids]])
    code, log = import_them(prefix, gpt_like[0], *options)
    assert code == 2 and re.search(says.replace("[0, 300)", r"\[0, 300\)"), log), log


def test_the_vocabulary_that_is_told_is_compared(gpt_like, tmp_path, import_them):
    prefix = write_indexed(tmp_path / "x", [[[40, 41]]])
    assert import_them(prefix, gpt_like[0], "--vocab-size", 300)[0] == 0


def test_a_finished_folder_is_not_written_again(gpt_like, tmp_path, import_them):
    prefix = write_indexed(tmp_path / "x", [[[40, 41]]])
    import_them(prefix, gpt_like[0])
    code, log = import_them(prefix, gpt_like[0])
    assert code == 2 and "is finished already. Choose another name" in log


def test_several_data_sets_follow_one_another(gpt_like, tmp_path, capsys):
    folder, tokenizer, _ = gpt_like
    corpora = [["the river", "rose"], ["a gap"]]
    names = [
        str(write_indexed(tmp_path / f"x{n}", as_documents(tokenizer, c)))
        for n, c in enumerate(corpora)
    ]
    arguments = ["import-megatron", "--input", *names, "--tokenizer", str(folder)]
    assert main([*arguments, "--output", str(tmp_path / "shards"), "--mix", "2"]) == 0
    shards = open_shards(tmp_path / "shards")
    assert [s.documents for s in shards.manifest.sources] == [2, 0, 1, 0]
    assert len(shards.manifest.splits["train"].shards) in (1, 2)
    capsys.readouterr()
    assert main(["stats", str(tmp_path / "shards"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["documents"] == 3


THREE = [[[7, 8, 9]], [[10, 11]], [[12, 13, 14, 15], [16]]]


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("x.idx", lambda raw: b"X" + raw[1:], "it does not begin with"),
        ("x.idx", lambda raw: raw[:20], "it is cut off inside its header"),
        ("x.idx", lambda raw: raw[:9] + b"\x02" + raw[10:], "it is of version 2"),
        ("x.idx", lambda raw: raw[:17] + b"\x07" + raw[18:], "ids that are no integers"),
        ("x.idx", lambda raw: raw[:17] + b"\x09" + raw[18:], "ids of an unknown type"),
        ("x.idx", lambda raw: raw[:-1], r"it has \d+ bytes, its header asks for"),
        ("x.idx", lambda raw: raw + b"\0", r"it has \d+ bytes, its header asks for"),
        ("x.idx", lambda raw: raw + bytes(4), "a mode for each sequence"),
        ("x.idx", lambda raw: raw[:18] + b"\xff" * 8 + raw[26:], "its header asks for"),
        ("x.idx", lambda raw: raw[:34] + b"\xff\xff\xff\xff" + raw[38:], "a length below 0"),
        ("x.idx", lambda raw: raw[:38] + b"\x03" + raw[39:], "sequence 2 does not begin where"),
        ("x.idx", lambda raw: raw[:58] + b"\x04" + raw[59:], "sequence 1 does not begin where"),
        ("x.idx", lambda raw: raw[:17] + b"\x08" + raw[18:], "does not begin where"),
        ("x.idx", lambda raw: raw[:-32] + b"\x01" + raw[-31:], "do not go from sequence 0 to 4"),
        ("x.idx", lambda raw: raw[:-8] + b"\x03" + raw[-7:], "do not go from sequence 0 to 4"),
        ("x.idx", lambda raw: raw[:-24] + b"\x09" + raw[-23:], "document 1 ends before it begins"),
        ("x.bin", lambda raw: raw[:-4], "holds 9 ids, x.idx tells of 10"),
        ("x.bin", lambda raw: raw[:-1], "no multiple of 4"),
        ("x.bin", lambda raw: raw + bytes(4), "holds 11 ids, x.idx tells of 10"),
        ("x.bin", lambda raw: b"", "holds 0 ids, x.idx tells of 10"),
    ],
)
def test_files_that_are_cut_off_or_changed_are_named(tmp_path, name, change, says):
    prefix = write_indexed(tmp_path / "x", THREE)
    path = tmp_path / name
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=says) as raised:
        IndexedFiles(prefix)
    assert str(raised.value).startswith(f"{path}: ")


def test_both_files_must_be_there(tmp_path):
    prefix = write_indexed(tmp_path / "x", THREE)
    (tmp_path / "x.bin").unlink()
    with pytest.raises(ValueError, match=r"--input \S+x\.idx: there is no file \S+x\.bin"):
        IndexedFiles(f"{prefix}.idx")


@pytest.mark.parametrize("max_ids", [1, 4, 5, 100])
def test_batches_hold_whole_documents_in_order(tmp_path, max_ids):
    files = IndexedFiles(write_indexed(tmp_path / "x", [*THREE, [], [[]], [[17]]]))
    batches = list(files.batches(max_ids, 100))
    assert sum(len(b.sequences_N) for b in batches) == files.num_documents == 6
    assert [n for b in batches for n in b.lengths_N] == [3, 2, 5, 0, 0, 1]
    assert [i for b in batches for i in b.ids] == list(range(7, 18))
    assert [n for b in batches for n in b.sequences_N] == [1, 1, 2, 0, 1, 1]
    assert next(b.first_document for b in batches) == 0


@pytest.mark.parametrize("max_ids", [1, 100])
def test_a_document_that_is_too_long_is_refused_before_it_is_read(tmp_path, max_ids):
    files = IndexedFiles(write_indexed(tmp_path / "x", THREE))  # 3, 2 and 5 ids
    assert sum(len(b.ids) for b in files.batches(max_ids, 5)) == 10
    read = []
    with pytest.raises(ValueError, match=r"x\.bin: document 2 has more than 4 ids"):
        read += (b.ids for b in files.batches(max_ids, 4))
    assert sum(map(len, read)) == (5 if max_ids == 1 else 0)


@pytest.mark.parametrize("length", [50, 51, 52])
def test_the_id_that_ends_a_document_does_not_count(
    tmp_path, model_file, monkeypatch, import_them, length
):
    monkeypatch.setattr(megatron_documents, "MAX_CHARACTERS", 50)
    tokenizer = open_tokenizer(str(model_file))
    (ids,) = tokenizer.encode(["the river rose in night " * 20])
    document = [*ids[: length - 1].tolist(), tokenizer.special.eos]
    prefix = write_indexed(tmp_path / "x", [[document]])
    code, said = import_them(prefix, model_file, "--retokenize", "ignore")
    if length <= 51:
        assert code == 0
    else:
        assert code == 2 and "document 0 has more than 51 ids" in said


def test_any_change_of_an_index_is_found_or_changes_no_document(tmp_path):
    """Every bit of it: what a document holds never changes without an error."""
    prefix = write_indexed(tmp_path / "x", THREE)
    whole = (tmp_path / "x.idx").read_bytes()
    num_silent = 0
    for bit in range(8 * len(whole)):
        raw = bytearray(whole)
        raw[bit // 8] ^= 1 << bit % 8
        (tmp_path / "x.idx").write_bytes(raw)
        try:
            batches = list(IndexedFiles(prefix).batches(100, 100))
        except ValueError:
            continue
        num_silent += 1
        # Only the number of a document's first sequence has nothing to be compared with.
        assert len(whole) - 32 + 8 <= bit // 8 < len(whole) - 8
        assert [i for b in batches for i in b.ids] == list(range(7, 17))
    assert num_silent <= 6
