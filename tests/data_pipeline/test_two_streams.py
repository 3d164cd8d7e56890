"""Two aligned streams on disk: one document, ids of two tokenizers, the same text under both."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.__main__ import main
from data_pipeline.preparing.length_limits import LengthLimits
from data_pipeline.preparing.merge import merge
from data_pipeline.preparing.output_folder import OutputFolder
from data_pipeline.preparing.prepare import AlreadyPrepared, PrepareSettings, prepare
from data_pipeline.preparing.prepare_slice import prepare_slice
from data_pipeline.preparing.request import open_request
from data_pipeline.storage.manifest import read_manifest
from data_pipeline.storage.shards import check_one_tokenizer, open_shards
from data_pipeline.storage.verify import verify


@pytest.fixture(scope="module")
def request_of(tmp_path_factory, byte_bpe_folder, wordpiece_folder, corpus_file):
    """Settings that prepare two streams into a folder NAME, some of them changed."""
    base = tmp_path_factory.mktemp("streams")

    def build(name: str, **changes) -> PrepareSettings:
        given = {
            "input": [str(corpus_file)],
            "tokenizer": str(byte_bpe_folder),
            "encoder_tokenizer": str(wordpiece_folder),
            "output": str(base / name),
            "workers": 1,
        }
        return PrepareSettings(**given | changes)

    return build


@pytest.fixture(scope="module")
def make(request_of):
    """Prepares the folder NAME and gives its path."""

    def run(name: str, **changes) -> Path:
        settings = request_of(name, **changes)
        prepare(settings)
        return Path(settings.output)

    return run


@pytest.fixture(scope="module")
def prepared(make) -> Path:
    return make("plain", validation=0.1, shard_tokens=4000)


@pytest.fixture
def folder(prepared, tmp_path) -> Path:
    """A copy that may be damaged."""
    return shutil.copytree(prepared, tmp_path / "shards")


def contents(folder: Path) -> dict[str, bytes]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def letters(text: str) -> str:
    """What both tokenizers keep: WordPiece loses capitals and spaces."""
    return "".join(text.lower().split())


def documents(split, tokenizer) -> list[str]:
    numbers = np.arange(split.num_documents)
    lengths = split.lengths(numbers)
    flat = split.tokens(numbers, np.zeros_like(lengths), lengths)
    return [tokenizer.decode(t) for t in np.split(flat, np.cumsum(lengths)[:-1])]


def test_a_document_is_the_same_text_in_both_streams(prepared, corpus_file):
    shards = open_shards(prepared)
    split = shards.splits["train"]
    assert len(shards.manifest.splits["train"].shards) > 2
    first = documents(split, shards.tokenizer())
    second = documents(split.encoder, shards.encoder_tokenizer())
    assert [letters(text) for text in second] == [letters(text) for text in first]
    held_out = documents(shards.splits["validation"], shards.tokenizer())
    assert sorted(first + held_out) == sorted(corpus_file.read_text().splitlines())


def test_sentences_end_at_the_same_places_in_both_streams(prepared):
    shards = open_shards(prepared)
    split, tokenizers = shards.splits["train"], (shards.tokenizer(), shards.encoder_tokenizer())
    for document in range(20):
        sentences = []
        for stream, tokenizer in zip((split, split.encoder), tokenizers):
            ends, _ = stream.sentence_ends([document])
            ids = stream.tokens([document], [0], stream.lengths([document]))
            sentences.append([letters(tokenizer.decode(s)) for s in np.split(ids, ends[:-1])])
        assert sentences[0] == sentences[1]


def test_a_prompt_stands_in_front_in_both_streams(make, tmp_path):
    rows = [{"about": "A river.", "text": "the bridge"}, {"about": "", "text": "the gap"}]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"input": [str(tmp_path / "x.jsonl")]}
    read = PrepareSettings(input=["x"], tokenizer="x", output="x").read
    shards = open_shards(make("prompts", **settings, read=type(read)(prompt_field="about")))
    split = shards.splits["train"]
    for stream, tokenizer in (
        (split, shards.tokenizer()),
        (split.encoder, shards.encoder_tokenizer()),
    ):
        prompts = stream.prompt_lengths([0, 1])
        assert prompts[0] > 0 == prompts[1]
        ids = stream.tokens([0], [0], [prompts[0]])
        assert letters(tokenizer.decode(ids)) == "ariver."


def test_the_first_stream_has_the_bytes_of_a_folder_with_one(make):
    chosen = {"validation": 0.1, "shard_tokens": 5000, "mix": 2}
    folders = [make("two", **chosen), make("one", encoder_tokenizer=None, **chosen)]
    two, one = (contents(folder) for folder in folders)
    assert '"encoder"' not in one["manifest.json"].decode()
    assert two.keys() - one.keys() == {
        "encoder_tokenizer/settings.json",
        "encoder_tokenizer/tokenizer.json",
        *(p.replace(".", ".encoder.") for p in one if p.endswith((".tokens", ".index"))),
    }
    assert all(two[path] == one[path] for path in one if path != "manifest.json")
    # The rows of a run depend on the second stream too, and so does what a resume compares.
    fingerprints = {read_manifest(folder).splits["train"].fingerprint for folder in folders}
    assert len(fingerprints) == 2


def test_any_number_of_workers_and_slices_gives_the_same_bytes(make, request_of):
    chosen = {"validation": 0.2, "mix": 3, "shard_tokens": 3000, "dedup": "exact"}
    chosen["lengths"] = LengthLimits(max_words=22)
    expected = contents(make("whole", **chosen))
    assert contents(make("two processes", workers=2, slice_bytes=5000, **chosen)) == expected
    settings = request_of("by hand", slice_bytes=1500, **chosen)
    request, folder = open_request(settings), Path(settings.output)
    assert len(request.slices) > 3
    with OutputFolder(folder, is_shared=True) as work:
        for number in reversed(range(len(request.slices))):
            prepare_slice(open_request(settings), number, work.slices)
    with OutputFolder(folder) as work:
        merge(request, work)
    assert contents(folder) == expected


def test_a_run_goes_on_behind_finished_slices(make, request_of):
    expected = contents(make("unbroken"))
    settings = request_of("broken", slice_bytes=1500)
    request, folder = open_request(settings), Path(settings.output)
    with OutputFolder(folder, is_shared=True) as work:
        for number in (0, 2):
            prepare_slice(request, number, work.slices)
        part = work.slices / f"{request.slices[2].fingerprint}.part"
        part.write_bytes(part.read_bytes()[:-3] + b"abc")  # found by its hash, and made anew
    with pytest.raises(ValueError, match="is damaged and was removed"):
        prepare(settings)
    prepare(settings)
    assert contents(folder) == expected


def test_slices_of_another_encoder_tokenizer_are_made_anew(request_of, model_file):
    one, two, none = (
        open_request(request_of("x", **changes)).slices[0].fingerprint
        for changes in ({}, {"encoder_tokenizer": str(model_file)}, {"encoder_tokenizer": None})
    )
    assert len({one, two, none}) == 3


def test_a_finished_folder_names_another_encoder_tokenizer(make, prepared, model_file):
    chosen = {"validation": 0.1, "shard_tokens": 4000}
    with pytest.raises(AlreadyPrepared):
        make("plain", **chosen)
    for other in (None, str(model_file)):
        with pytest.raises(ValueError, match=r"made by another request \(changed: encoder tok"):
            make("plain", encoder_tokenizer=other, **chosen)
    with pytest.raises(ValueError, match=r"changed: max_words"):
        make("plain", lengths=LengthLimits(max_words=9), **chosen)


def test_every_damaged_file_of_the_second_stream_is_named(folder):
    manifest = read_manifest(folder)
    assert verify(folder, manifest) == []
    files = [folder / f.path for f in manifest.files() if "encoder" in f.path]
    assert len(files) > 6
    for path in files:
        whole = path.read_bytes()
        content = bytearray(whole)
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
        assert [p.startswith(f"{path} has the checksum") for p in verify(folder, manifest)] == [
            True
        ]
        path.write_bytes(whole)
    files[-1].unlink()
    with pytest.raises(ValueError, match=f"{files[-1].name} is missing"):
        open_shards(folder)


def test_an_id_outside_the_encoders_vocabulary_is_found_where_it_is_read(folder):
    path = folder / "train/00000.encoder.tokens"
    path.write_bytes(b"\xff\xff" + path.read_bytes()[2:])
    split = open_shards(folder).splits["train"]
    split.tokens([0], [0], [1])
    with pytest.raises(ValueError, match=r"00000\.encoder\.tokens is damaged: .*id 65535"):
        split.encoder.tokens([0], [0], [1])


def test_an_index_of_other_documents_is_no_second_stream(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["encoder"]["shards"]["train"].pop()
    from data_pipeline.storage import manifest as room

    del manifest["checksum"]
    manifest["checksum"] = room._checksum(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="do not hold the documents of the others"):
        open_shards(folder)


def test_folders_of_one_run_must_agree_on_both_tokenizers(make, prepared, model_file):
    first = open_shards(prepared)
    check_one_tokenizer([first, first])
    for name, encoder in (("single", None), ("other", str(model_file))):
        other = open_shards(make(name, encoder_tokenizer=encoder))
        with pytest.raises(ValueError, match="was prepared with another tokenizer than"):
            check_one_tokenizer([first, other])


LINES = [
    "one",
    "rose bridge by the village",
    "one two",
    "one two three",
    "one two three four",
    "bridge " * 12,
    "  a  b  c  ",
]


def skipped(make, tmp_path, limits: LengthLimits, **changes) -> tuple[dict[str, int], int]:
    (tmp_path / "x.txt").write_text("\n".join(LINES))
    folder = make(tmp_path.name, input=[str(tmp_path / "x.txt")], lengths=limits, **changes)
    manifest = read_manifest(folder)
    return manifest.skipped, manifest.documents


def test_documents_of_too_few_or_too_many_words_are_counted(make, tmp_path):
    counts, kept = skipped(make, tmp_path, LengthLimits(min_words=2, max_words=3))
    assert (counts, kept) == ({"too_few_words": 1, "too_many_words": 3}, 3)


def test_documents_of_too_many_tokens_under_either_tokenizer_are_counted_once(
    make, tmp_path, wordpiece_folder, byte_bpe_folder
):
    # WordPiece as the first: "bridge" is one token, of the byte BPE several with its space.
    both = {"tokenizer": str(wordpiece_folder), "encoder_tokenizer": str(byte_bpe_folder)}
    counts, kept = skipped(make, tmp_path, LengthLimits(max_tokens=11), **both)
    assert counts.keys() == {"too_many_tokens", "too_many_encoder_tokens"}
    assert sum(counts.values()) + kept == len(LINES)
    shards = open_shards(make(f"{tmp_path.name}-all", input=[str(tmp_path / "x.txt")], **both))
    split, numbers = shards.splits["train"], np.arange(len(LINES))
    first, second = split.lengths(numbers) > 11, split.encoder.lengths(numbers) > 11
    assert counts["too_many_tokens"] == first.sum()
    assert counts["too_many_encoder_tokens"] == (second & ~first).sum() > 0


def test_limits_that_leave_nothing_say_what_was_left_out(make, tmp_path):
    with pytest.raises(ValueError, match=r"hold no document \(7 too_few_words\)"):
        skipped(make, tmp_path, LengthLimits(min_words=20))


@pytest.mark.parametrize(
    "limits, message",
    [
        ({"min_words": 0}, "--min-words must be at least 1, got 0"),
        ({"max_tokens": -5}, "--max-tokens must be at least 1, got -5"),
        ({"min_words": 4, "max_words": 3}, "--min-words 4 lies above --max-words 3"),
    ],
)
def test_impossible_limits_are_refused(limits, message):
    with pytest.raises(ValueError, match=message):
        LengthLimits(**limits)


def test_an_alias_without_an_encoder_tokenizer_is_refused(request_of):
    with pytest.raises(ValueError, match="--encoder-alias has no effect without"):
        request_of("x", encoder_tokenizer=None, encoder_aliases={"pad": "eos"})


def test_the_command_line_makes_two_streams_and_says_what_was_left_out(
    tmp_path, byte_bpe_folder, wordpiece_folder, capsys
):
    (tmp_path / "x.txt").write_text("\n".join(LINES))
    settings = {
        "input": [str(tmp_path / "x.txt")],
        "tokenizer": str(byte_bpe_folder),
        "encoder_tokenizer": str(wordpiece_folder),
        "encoder_alias": ["eos=sep"],
        "max_words": 4,
        "output": str(tmp_path / "shards"),
    }
    (tmp_path / "prepare.yaml").write_text(json.dumps(settings))
    command = ["prepare", "--config", str(tmp_path / "prepare.yaml"), "--workers", "1"]
    assert main([*command, "--min-words", "0"]) == 2
    assert "--min-words must be at least 1, got 0" in capsys.readouterr().err
    assert main([*command, "--min-words", "2"]) == 0
    said = capsys.readouterr().out
    assert "skipped: 1 too_few_words, 2 too_many_words" in said
    assert "encoder: " in said
    encoder = read_manifest(tmp_path / "shards").encoder
    assert encoder is not None and encoder.aliases == {"eos": "sep"}


def test_a_tokenizer_that_cannot_be_the_encoders_is_named_with_its_option(request_of, tmp_path):
    with pytest.raises(ValueError, match=r"^--encoder-tokenizer: tokenizer .* does not exist"):
        open_request(request_of("x", encoder_tokenizer=str(tmp_path / "none")))
