"""Filling: the rows of the published code, the words that are missing, and what a user may ask."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from data_pipeline.transforms.blank import BlankConfig
from kernels.visibility import single_documents
from pretrain.filling import generate
from pretrain.filling.generate import FillSettings, TrainedRun, fill

GREEDY = FillSettings(max_tokens=8)


def by_hand(backbone, words, segments, marks, *, max_tokens, is_suffix=False):
    """Greedy text infilling as the published code has it, one row at a time, written out.

    Part A: CLS, the segments with their mask tokens, and eos (not for a suffix). For each blank in
    text order: sop at the position of its mask, block position 1, then what was written, 2, 3, ...
    """
    special = words.special
    part_a, places = [special.cls], []
    for segment, mark in zip(segments, [*marks, None]):
        part_a += segment
        if mark:
            places.append(len(part_a))
            part_a.append(getattr(special, mark))
    part_a += [] if is_suffix else [special.eos]
    ids, position, block = list(part_a), list(range(len(part_a))), [0] * len(part_a)
    blanks = []
    for place in places:
        ids, position, block = [*ids, special.sop], [*position, place], [*block, 1]
        written = []
        while len(written) < max_tokens:
            visibility = single_documents(
                torch.tensor([len(ids)]), torch.tensor([len(part_a)]), len(ids)
            )
            hidden = backbone(torch.tensor([ids]), torch.tensor([[position, block]]), visibility)
            scores = backbone.logits(hidden[0, -1])
            scores[words.vocab_size :] = float("-inf")
            for token in words.special.by_name().values():
                is_end = token == special.eop or (is_suffix and token == special.eos)
                if not (is_end and written):
                    scores[token] = float("-inf")
            best = int(scores.argmax())
            if best in (special.eop, special.eos):
                break
            written.append(best)
            ids, position, block = [*ids, best], [*position, place], [*block, len(written) + 1]
        blanks.append(written)
    return blanks


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_greedy_filling_equals_the_published_loop(untrained, words, seed):
    rng = np.random.default_rng(seed)
    segments = [rng.integers(0, 26, size=n).tolist() for n in (3, 0, 4, 2)]
    marks = ["mask", "smask", "gmask"]
    expected = by_hand(untrained, words, segments, marks, max_tokens=6)
    names = {"mask": "[MASK]", "smask": "[sMASK]", "gmask": "[gMASK]"}
    text = words.decode(segments[0])
    for mark, segment in zip(marks, segments[1:]):
        text += f" {names[mark]} {words.decode(segment)}"
    (filled,) = fill(untrained, words, [text], FillSettings(max_tokens=6))
    assert [blank.ids for blank in filled.blanks] == expected
    whole = list(segments[0])
    for blank, segment in zip(expected, segments[1:]):
        whole += [*blank, *segment]
    assert filled.filled == words.decode(whole)


@torch.no_grad()
def test_a_continuation_equals_the_published_loop(untrained, words):
    expected = by_hand(untrained, words, [[3, 1, 4], []], ["gmask"], max_tokens=9, is_suffix=True)
    (filled,) = fill(untrained, words, ["d b e [gMASK]"], FillSettings(max_tokens=9))
    assert [blank.ids for blank in filled.blanks] == expected


@torch.no_grad()
def test_a_text_is_filled_before_it_is_continued(untrained, words):
    (filled,) = fill(untrained, words, ["d [MASK] e [gMASK]"], FillSettings(max_tokens=3))
    first, continuation = filled.blanks
    inner = [3, *first.ids, 4]
    expected = by_hand(untrained, words, [inner, []], ["gmask"], max_tokens=3, is_suffix=True)
    assert [continuation.ids] == expected
    assert filled.filled == words.decode([*inner, *continuation.ids])


def test_a_trained_model_fills_what_is_missing(alphabet, words):
    texts = ["a b [MASK] d e [MASK] h i j", "f g [MASK] j k [MASK] m n"]
    filled = fill(alphabet, words, texts, GREEDY)
    assert [f.filled for f in filled] == ["a b c d e f g h i j", "f g h i j k l m n"]
    assert [b.text for b in filled[0].blanks] == ["c", "f g"]
    assert all(blank.complete for f in filled for blank in f.blanks)
    assert [f.text for f in filled] == texts


def test_a_trained_model_continues_to_the_end_and_stops(alphabet, words):
    (filled,) = fill(alphabet, words, ["r s t [gMASK]"], FillSettings(max_tokens=20))
    assert filled.filled == "r s t u v w x y z"
    assert filled.blanks[0].complete


def test_log_probs_are_those_of_the_tokens_and_the_end(alphabet, words):
    (filled,) = fill(alphabet, words, ["a b [MASK] d e [MASK] h i j"], GREEDY)
    for blank in filled.blanks:
        assert len(blank.log_probs) == len(blank.ids) + 1
        assert all(-0.5 < log_prob <= 0 for log_prob in blank.log_probs)


def test_texts_filled_together_equal_texts_filled_alone(untrained, words):
    texts = ["a [MASK]", "c d e f g [MASK] h i [sMASK]", "[MASK] x [MASK] y [MASK]", "q [gMASK]"]
    settings = FillSettings(max_tokens=5)
    together = fill(untrained, words, texts, settings)
    few = fill(untrained, words, texts, replace(settings, batch_texts=2))
    alone = [fill(untrained, words, [text], settings)[0] for text in texts]
    for one, two, three in zip(together, few, alone, strict=True):
        assert one.filled == two.filled == three.filled
        for a, b in zip(one.blanks, three.blanks, strict=True):
            assert a.log_probs == pytest.approx(b.log_probs, abs=1e-4)


def test_draws_depend_on_the_seed_and_not_on_the_batch(untrained, words):
    texts = ["a [MASK] b", "c [MASK] d [MASK] e", "f [gMASK]"]
    settings = FillSettings(strategy="sample", temperature=5.0, seed=3, max_tokens=6)
    first = [f.filled for f in fill(untrained, words, texts, settings)]
    assert first == [f.filled for f in fill(untrained, words, texts, settings)]
    one_by_one = replace(settings, batch_texts=1)
    assert first == [f.filled for f in fill(untrained, words, texts, one_by_one)]
    assert first != [f.filled for f in fill(untrained, words, texts, replace(settings, seed=4))]


def test_only_words_are_written(untrained, words):
    """At a temperature where all 128 rows of the table are about equally likely."""
    settings = FillSettings(strategy="sample", temperature=1e4, max_tokens=25)
    for filled in fill(untrained, words, ["a [MASK] b", "c [gMASK]"] * 10, settings):
        for blank in filled.blanks:
            assert blank.ids and all(token < 26 for token in blank.ids)


def test_a_blank_that_does_not_end_is_cut_and_says_so(untrained, words):
    (filled,) = fill(untrained, words, ["a [MASK] b"], FillSettings(max_tokens=1))
    (blank,) = filled.blanks
    assert len(blank.ids) == len(blank.log_probs) == 1
    assert not blank.complete


def test_the_position_table_limits_a_blank(untrained, words):
    """A model that never ends: token 31 stands at block position 32, the last row of the table."""

    def scores(inputs):
        assert inputs["positions"].max() <= 32
        return torch.nn.functional.one_hot(torch.tensor([2]), 128).float()

    settings = FillSettings(max_tokens=500)
    (filled,) = fill(untrained, words, ["a [MASK] b [MASK] c"], settings, scores=scores)
    assert [blank.ids for blank in filled.blanks] == [[2] * 31] * 2
    assert not any(blank.complete for blank in filled.blanks)


def test_a_text_beyond_the_model_is_refused(untrained, words):
    with pytest.raises(ValueError, match=r"has 34 tokens .* reads at most 32\. Shorten it"):
        fill(untrained, words, ["a " * 31 + "[MASK]"])
    fill(untrained, words, ["a " * 29 + "[MASK]"], FillSettings(max_tokens=1))


def test_the_model_is_left_in_the_mode_it_was_in(untrained, words):
    untrained.train()
    fill(untrained, words, ["a [MASK]"], FillSettings(max_tokens=1))
    assert untrained.training


def test_ablations_of_training_hold_in_filling(untrained, words):
    """Without block positions all of part B has block 1; with one mask token sMASK is MASK."""
    seen = []
    handle = untrained.register_forward_pre_hook(lambda _m, inputs: seen.append(inputs))
    fill(
        untrained, words, ["a [sMASK] b"], FillSettings(max_tokens=3),
        blanks=BlankConfig(block_positions="none", mask_tokens="single", block_mask_prob=0.9),
    )  # fmt: skip
    handle.remove()
    ids, positions, _ = zip(*seen)
    assert int(ids[0][0, 2]) == words.special.mask
    assert len(seen) == 3 and all(positions[0, 1].max() == 1 for positions in positions)
    assert not (torch.cat(ids, dim=1) == words.special.dblock).any()


def test_scores_may_come_from_elsewhere(untrained, words):
    """Where weights are sharded, the engine is asked: here, one that always wants `c`, then eop."""
    asked = []

    def scores(inputs):
        asked.append({name: tuple(t.shape) for name, t in inputs.items()})
        out = torch.zeros(len(inputs["ids"]), 128)
        out[:, words.special.eop], out[:, 2] = 2.0, 1.0
        return out

    filled = fill(untrained, words, ["a [MASK] b", "d [MASK]"], scores=scores)
    assert [f.filled for f in filled] == ["a c b", "d c"]
    assert asked[0]["positions"] == (2, 2, 6) and asked[0]["last"] == (2,)


@pytest.fixture
def run(alphabet, words, monkeypatch):
    """The command line on the alphabet instead of a run folder."""

    def load(folder, step):
        assert (folder.name, step) == ("RUN", None)
        return TrainedRun(alphabet, words, BlankConfig())

    monkeypatch.setattr(generate, "load_run", load)


def test_the_command_prints_a_line_for_each_text(run, capsys):
    generate.main(["RUN", "--text", "a b [MASK] d e [MASK] h i j", "--text", "r s t [gMASK]"])
    assert capsys.readouterr().out == "a b c d e f g h i j\nr s t u v w x y z\n"


def test_the_command_reads_a_file_and_prints_json(run, capsys, tmp_path):
    (tmp_path / "texts.txt").write_text("f g [MASK] j k [MASK] m n\n\n", encoding="utf-8")
    generate.main(["RUN", "--input", str(tmp_path / "texts.txt"), "--json"])
    (filled,) = json.loads(capsys.readouterr().out)
    assert filled["text"] == "f g [MASK] j k [MASK] m n"
    assert filled["filled"] == "f g h i j k l m n"
    assert [blank["text"] for blank in filled["blanks"]] == ["h i", "l"]


def test_the_command_searches_by_beams(run, capsys):
    argv = ["--strategy", "beam", "--num-beams", "2", "--length-penalty", "0.7"]
    rules = ["--min-tokens", "1", "--no-repeat-ngram", "3", "--repetition-penalty", "1.1"]
    generate.main(["RUN", "--text", "a b [MASK] d e [MASK] h i j", *argv, *rules])
    assert capsys.readouterr().out == "a b c d e f g h i j\n"


def test_a_bad_line_of_a_file_is_named(run, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("a [MASK] c\n\nno blank\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"texts.txt, line 3, holds no blank: 'no blank'"):
        generate.main(["RUN", "--input", str(path)])
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"texts.txt holds no text"):
        generate.main(["RUN", "--input", str(path)])


def test_a_byte_order_mark_is_no_text(run, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_bytes(b"\xef\xbb\xbfa [MASK] c\n")
    arguments = generate.parser().parse_args(["RUN", "--input", str(path)])
    assert generate.texts_of(arguments) == ["a [MASK] c"]


@pytest.mark.parametrize("front", [b"", b"\xef\xbb\xbf"])
def test_a_file_that_is_not_utf8_is_named_with_the_byte(run, tmp_path, front):
    path = tmp_path / "texts.txt"
    path.write_bytes(front + "é [MASK]".encode("latin-1"))
    said = rf"texts.txt is not UTF-8 at byte {len(front)} \(from 0\). Convert it to UTF-8."
    with pytest.raises(ValueError, match=said):
        generate.main(["RUN", "--input", str(path)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: RUN"),
        (["RUN"], "one of the arguments --text --input is required"),
        (["RUN", "--text", "no blank"], "holds no blank"),
        (
            ["RUN", "--text", "a [MASK]", "--top-k", "5", "--top-p", "1"],
            "--top-k, --top-p has no effect with --strategy greedy. Add --strategy sample",
        ),
        (
            ["RUN", "--text", "a [MASK]", "--strategy", "sample", "--num-beams", "5"],
            "--num-beams has no effect with --strategy sample. Add --strategy beam",
        ),
        (
            ["RUN", "--text", "a [MASK]", "--strategy", "beam", "--temperature", "2"],
            "--temperature has no effect with --strategy beam. Add --strategy sample",
        ),
        (
            ["RUN", "--text", "a [MASK]", "--min-tokens", "9", "--max-tokens", "3"],
            "min_tokens must not pass max_tokens = 3, got 9",
        ),
        (["RUN", "--text", "a [MASK]", "--max-tokens", "0"], "max_tokens must be at least 1"),
        (
            ["RUN", "--input", "nowhere.txt"],
            "nowhere.txt cannot be read: No such file or dir[a-z]+. Name",
        ),
        (["RUN", "--text", "a [MASK]", "--strategy", "best"], "invalid choice: 'best'"),
    ],
)
def test_a_mistake_is_one_message(run, arguments, message):
    with pytest.raises(ValueError, match=message):
        generate.main(arguments)


def test_a_continuation_without_room_says_what_to_lower(untrained, words):
    def scores(inputs):
        return torch.nn.functional.one_hot(torch.tensor([2]), 128).float()

    with pytest.raises(ValueError, match=r"there is no room to go on from it. Lower --max-tokens"):
        fill(untrained, words, ["a [MASK] b [gMASK]"], FillSettings(), scores=scores)
