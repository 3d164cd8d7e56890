"""Text becomes shards: the same bytes each time, complete or not there, nothing lost."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from data_pipeline.preparing.encode import is_validation
from data_pipeline.preparing.output_folder import OutputFolder
from data_pipeline.preparing.prepare import AlreadyPrepared, PrepareSettings, prepare
from data_pipeline.reading.documents import ReadSettings
from data_pipeline.storage.shards import open_shards


@pytest.fixture
def run(tmp_path, model_file, corpus_file):
    """Prepares into tmp_path/NAME with some settings changed and gives the opened shards."""

    def run_prepare(name="shards", **changes):
        given = {
            "input": [str(corpus_file)],
            "tokenizer": str(model_file),
            "output": str(tmp_path / name),
        }
        prepare(PrepareSettings(**given | changes))
        return open_shards(tmp_path / name)

    return run_prepare


def contents(folder) -> dict[str, bytes]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def decoded(split, tokenizer) -> list[str]:
    numbers = np.arange(split.num_documents)
    lengths = split.lengths(numbers)
    flat = split.tokens(numbers, np.zeros_like(lengths), lengths)
    return [tokenizer.decode(t) for t in np.split(flat, np.cumsum(lengths)[:-1])]


def test_documents_are_stored_in_order_and_whole(run, corpus_file):
    shards = run()
    texts = corpus_file.read_text().splitlines()
    assert decoded(shards.splits["train"], shards.tokenizer()) == texts
    assert shards.splits["validation"].num_documents == 0


def test_mixed_documents_are_dealt_to_shards_by_the_hash_of_their_text(run, tmp_path):
    lines = [f"the river rose {number} times." for number in range(400)]
    (tmp_path / "x.txt").write_text("\n".join(lines))
    mixed = run("mixed", input=[str(tmp_path / "x.txt")], mix=5)
    run("again", input=[str(tmp_path / "x.txt")], mix=5)
    assert contents(tmp_path / "mixed") == contents(tmp_path / "again")
    counts = [shard.documents for shard in mixed.manifest.splits["train"].shards]
    texts = decoded(mixed.splits["train"], mixed.tokenizer())
    shards = np.split([lines.index(text) for text in texts], np.cumsum(counts)[:-1])
    assert len(shards) == 5 and len({*texts}) == 400
    # Each keeps the order of the input, and reaches from its front to its end.
    assert all((np.diff(shard) > 0).all() for shard in shards)
    assert all(shard[0] < 40 and shard[-1] > 360 for shard in shards)


def test_mixed_shards_are_closed_like_others(run, corpus_file):
    shards = run(shard_tokens=300, mix=3)
    entries = shards.manifest.splits["train"].shards
    assert [e.tokens_file.path for e in entries] == [
        f"train/{number:05d}.tokens" for number in range(len(entries))
    ]
    assert len(entries) > 6 and sum(e.tokens < 300 for e in entries) <= 3
    texts = decoded(shards.splits["train"], shards.tokenizer())
    assert sorted(texts) == sorted(corpus_file.read_text().splitlines())


def test_series_are_dealt_equally(tmp_path):
    from data_pipeline.storage.shard_writer import ShardWriter
    from data_pipeline.storage.stored import StoredDocuments

    hashes = np.random.default_rng(0).integers(0, 1 << 64, 9000, dtype=np.uint64)
    ones, nothing = np.ones(9000, np.int64), np.zeros(9000, np.int64)
    tokens = np.arange(9000, dtype=np.int32)
    # Those of the train split: hashes below a share went to validation.
    documents = StoredDocuments(tokens, ones, nothing, ones, ones, np.sort(hashes)).take(
        np.sort(hashes) > np.uint64(1 << 63)
    )
    writer = ShardWriter(tmp_path, "train", "int32", 1 << 20, series=8)
    writer.add(documents)
    counts = [shard.documents for shard in writer.close()]
    expected = len(documents) / 8
    assert len(counts) == 8 and max(abs(c - expected) for c in counts) < 5 * expected**0.5


def test_every_document_is_in_one_split_by_the_hash_of_its_text(run, corpus_file):
    shards = run(validation=0.3, shard_tokens=500)
    tokenizer = shards.tokenizer()
    train, held_out = (decoded(shards.splits[n], tokenizer) for n in ("train", "validation"))
    assert 0.2 < len(held_out) / 300 < 0.4
    assert sorted(train + held_out) == sorted(corpus_file.read_text().splitlines())
    assert not set(train) & set(held_out)
    assert len(shards.manifest.splits["train"].shards) > 1
    larger = run("larger", validation=0.5)
    assert set(held_out) <= set(decoded(larger.splits["validation"], tokenizer))


def test_the_share_is_kept_over_many_hashes():
    hashes = np.random.default_rng(0).integers(0, 2**64, 100_000, dtype=np.uint64)
    assert abs(is_validation(hashes, 0.1).mean() - 0.1) < 0.005
    assert not is_validation(np.append(hashes, np.uint64(0)), 0.0).any()


def test_the_same_inputs_give_the_same_bytes(run, tmp_path):
    run("a", validation=0.2, shard_tokens=700)
    run("b", validation=0.2, shard_tokens=700)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_text_never_holds_a_control_id(run, tmp_path):
    (tmp_path / "x.txt").write_text("[MASK] [gMASK] <sop> </s> [CLS]\n[PAD][UNK]\n")
    shards = run(input=[str(tmp_path / "x.txt")])
    control = set(shards.special.by_name().values())
    split = shards.splits["train"]
    assert not control & set(split.tokens([0, 1], [0, 0], split.lengths([0, 1])).tolist())


def test_prompts_stand_in_front_and_end_a_sentence(run, write_jsonl):
    path = write_jsonl([{"q": "the river?", "text": "rose. in night"}, {"q": "", "text": "a b"}])
    shards = run(input=[str(path)], read=ReadSettings(prompt_field="q"))
    split, tokenizer = shards.splits["train"], shards.tokenizer()
    prompt = len(tokenizer.encode(["the river?"])[0])
    assert split.prompt_lengths([0, 1]).tolist() == [prompt, 0]
    first = len(tokenizer.encode(["rose."])[0])
    ends, _ = split.sentence_ends([0])
    assert ends.tolist() == [prompt, prompt + first, split.lengths([0])[0]]
    text = tokenizer.decode(split.tokens([0], [prompt], split.lengths([0])))
    assert text == "rose. in night"


def test_a_vocabulary_above_65536_is_stored_in_four_bytes(run, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"[UNK]": 0, **{f"w{n}": n + 1 for n in range(70_000)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "x.txt").write_text("w69999 w0\n")
    shards = run(input=[str(tmp_path / "x.txt")], tokenizer=str(tmp_path / "tokenizer.json"))
    assert shards.manifest.dtype == "int32"
    assert shards.splits["train"].tokens([0], [0], [2]).tolist() == [70000, 1]


def test_what_is_left_out_is_counted_in_the_manifest(run, tmp_path, wordpiece_folder):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("the river\n\n \n\u0300\u200b\n")
    (folder / "b.txt").write_text("")
    (folder / "c.md").write_text("x")
    (folder / ".d.txt").write_text("x")
    shards = run(input=[str(folder)], tokenizer=str(wordpiece_folder))
    assert shards.manifest.skipped == {
        "blank": 2,
        "empty_file": 1,
        "hidden_file": 1,
        "no_tokens": 1,
        "unknown_file": 1,
    }
    assert [(s.documents, s.size_bytes) for s in shards.manifest.sources] == [(1, 19), (0, 0)]


def test_sources_and_licence_are_recorded(run, corpus_file):
    manifest = run(source="own words", licence="CC0").manifest
    assert (manifest.source, manifest.licence) == ("own words", "CC0")
    assert manifest.sources[0].path == str(corpus_file)
    assert manifest.sources[0].size_bytes == corpus_file.stat().st_size


def test_a_corpus_without_documents_is_an_error_that_counts(run, tmp_path):
    (tmp_path / "x.txt").write_text("\n\n")
    with pytest.raises(ValueError, match=r"hold no document \(2 blank\)"):
        run(input=[str(tmp_path / "x.txt")])
    assert not (tmp_path / "shards").exists()


@pytest.mark.parametrize("validation", [-0.1, 1.0, 3.0])
def test_the_share_must_lie_below_one(run, validation):
    with pytest.raises(ValueError, match=r"--validation must lie in \[0, 1\)"):
        run(validation=validation)


def test_a_finished_output_with_the_same_request_is_nothing_to_do(run):
    run(validation=0.1)
    with pytest.raises(AlreadyPrepared):
        run(validation=0.1)


def test_a_finished_output_of_another_request_is_an_error_that_names_the_change(run, tmp_path):
    run(validation=0.1)
    with pytest.raises(ValueError, match=r"finished already.*changed: validation"):
        run(validation=0.2)
    (tmp_path / "x.txt").write_text("a b\n")
    run("other", input=[str(tmp_path / "x.txt")])
    (tmp_path / "x.txt").write_text("a c\n")
    with pytest.raises(ValueError, match=r"changed: .*x\.txt"):
        run("other", input=[str(tmp_path / "x.txt")])


def test_a_folder_with_other_things_is_not_touched(run, tmp_path):
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards/mine").write_text("x")
    with pytest.raises(ValueError, match="holds something else"):
        run()
    assert os.listdir(tmp_path / "shards") == ["mine"]


def test_an_empty_folder_is_used(run, tmp_path):
    (tmp_path / "shards").mkdir()
    assert run().splits["train"].num_documents == 300


def test_an_error_leaves_nothing_behind(run, tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n{"no": 1}\n')
    with pytest.raises(ValueError, match=r"x\.jsonl:2"):
        run(input=[str(tmp_path / "x.jsonl")])
    assert os.listdir(tmp_path) == ["x.jsonl"]


def test_a_second_writer_of_one_output_is_refused(run, tmp_path):
    with OutputFolder(tmp_path / "shards") as work:
        with pytest.raises(ValueError, match="another process is writing"):
            run()
        (work.begin() / "x").write_text("x")
        work.complete()
    assert os.listdir(tmp_path / "shards") == ["x"]
    assert os.listdir(tmp_path) == ["shards"]


def test_an_interrupted_run_is_never_taken_for_a_finished_one(run, tmp_path, model_file):
    """Killed while it waits for a pipe that never ends; the next run starts over."""
    (tmp_path / "in").mkdir()
    script = (
        "import sys, time\n"
        "from data_pipeline.preparing.prepare import PrepareSettings, prepare\n"
        "from data_pipeline.watch import unwatched\n"
        "import data_pipeline.storage.shard_writer as room\n"
        "room.ShardWriter.close = lambda self: (print('there', flush=True), time.sleep(60))\n"
        f"prepare(PrepareSettings(input=[{str(tmp_path / 'in')!r}], "
        f"tokenizer={str(model_file)!r}, output={str(tmp_path / 'shards')!r}))\n"
    )
    (tmp_path / "in/x.txt").write_text("the river rose\n")
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "there\n"
    with pytest.raises(ValueError, match="another process is writing"):
        run()
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    process.stdout.close()
    assert not (tmp_path / "shards").exists() and (tmp_path / ".shards.partial").exists()
    started_at = time.monotonic()
    assert run().splits["train"].num_documents == 300
    assert time.monotonic() - started_at < 30
    assert not (tmp_path / ".shards.partial").exists()
    assert sorted(os.listdir(tmp_path / "shards")) == [
        "manifest.json",
        "tokenizer",
        "train",
        "validation",
    ]


def test_a_batch_never_changes_the_documents(run, monkeypatch, tmp_path):
    import data_pipeline.preparing.encode as room

    lines = ["the river\n", "a\u2581b", "\n\u00e9\u00e9. in\n\u4f60\u3002 night", "rose"]
    (tmp_path / "x.jsonl").write_text("".join(f"{json.dumps({'text': t})}\n" for t in lines * 9))
    run("large", input=[str(tmp_path / "x.jsonl")])
    monkeypatch.setattr(room, "_BATCH_CHARACTERS", 12)
    run("small", input=[str(tmp_path / "x.jsonl")])
    assert contents(tmp_path / "large") == contents(tmp_path / "small")
