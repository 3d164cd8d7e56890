"""`python -m pretrain latent`: tables and JSON of each verb, pictures, a line for a mistake."""

import json

import pytest

from pretrain.__main__ import main

FIRST, LAST = "the river sees the morning.", "a teacher follows every ship."
SHORT = ["--max_tokens", "8"]


def answer(capsys, *argv):
    main(["latent", *argv, "--json"])
    return json.loads(capsys.readouterr().out)


def ids(found):
    return [row["ids"] for row in found["texts"]]


def test_vectors_go_out_and_come_back_as_texts(run_of, tmp_path, capsys):
    run = str(run_of("optimus"))
    found = answer(capsys, "encode", run, "--text", FIRST, LAST)
    assert [row["text"] for row in found["texts"]] == [FIRST, LAST]
    assert found["texts"][0]["z"] == found["texts"][0]["mu"]
    (tmp_path / "z.json").write_text(json.dumps(found))
    texts = answer(capsys, "decode", run, "--vectors", str(tmp_path / "z.json"), *SHORT)["texts"]
    between = answer(capsys, "interpolate", run, "--first", FIRST, "--last", LAST, *SHORT)["texts"]
    assert [texts[0]["text"], texts[1]["text"]] == [between[0]["text"], between[-1]["text"]]
    assert (between[0]["t"], between[-1]["t"], len(between)) == (0.0, 1.0, 8)


def test_an_lstm_writes_as_the_others_do(run_of, tmp_path, capsys):
    run = str(run_of("lstm_vae"))
    found = answer(capsys, "encode", run, "--text", FIRST, LAST)
    (tmp_path / "z.json").write_text(json.dumps(found))
    decode = ["decode", run, "--vectors", str(tmp_path / "z.json"), *SHORT]
    texts = ids(answer(capsys, *decode))
    assert texts == ids(answer(capsys, *decode, "--batch_texts", "1"))
    between = ids(answer(capsys, "interpolate", run, "--first", FIRST, "--last", LAST, *SHORT))
    assert [between[0], between[-1]] == texts
    drawn = ["sample", run, "--num", "3", *SHORT, "--strategy", "sample"]
    assert len(set(map(tuple, ids(answer(capsys, *drawn))))) == 3
    same = answer(capsys, "analogy", run, "--a", FIRST, "--b", FIRST, "--c", LAST, *SHORT)
    assert ids(same) == texts[1:]


def test_a_line_ends_where_prepare_ends_it(run_of, tmp_path, capsys):
    """Not at the other marks that Unicode calls line ends."""
    path = tmp_path / "lines.txt"
    path.write_bytes("the river\u2028sees.\r\n\rtwo\x0c stones.\n".encode())
    found = answer(capsys, "encode", str(run_of("optimus")), "--input", str(path))
    assert [row["text"] for row in found["texts"]] == ["the river\u2028sees.", "two\x0c stones."]


def test_a_draw_of_the_posterior_instead_of_its_mean(run_of, capsys):
    argv = ["encode", str(run_of("optimus")), "--text", FIRST, "--z", "sampled"]
    (row,) = answer(capsys, *argv)["texts"]
    assert row["z"] != row["mu"]
    assert answer(capsys, *argv)["texts"] == [row]
    assert answer(capsys, *argv, "--seed", "1")["texts"] != [row]


def test_tables_that_a_person_reads(run_of, capsys):
    run = str(run_of("glm_vae"))
    main(["latent", "sample", run, "--num", "2", *SHORT, "--strategy", "sample", "--top_k", "5"])
    assert [line[:5] for line in capsys.readouterr().out.splitlines()] == ["  1 |", "  2 |"]
    main(["latent", "analogy", run, "--a", FIRST, "--b", LAST, "--c", FIRST, *SHORT])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a is to b as c is to d"
    assert [line[:5] for line in lines[1:]] == ["  a |", "  b |", "  c |", "  d |"]
    main(["latent", "encode", run, "--text", FIRST])
    assert capsys.readouterr().out.rstrip().endswith(f"| {FIRST}")


@pytest.fixture
def texts(tmp_path):
    """24 sentences and a label for each."""
    lines = [f"{who} {does} the city." for who in ("a teacher", "the old clock", "every ship")
             for does in ("sees", "carries", "follows", "leaves")] * 2  # fmt: skip
    (tmp_path / "texts.txt").write_text("\n".join(lines))
    (tmp_path / "labels.txt").write_text("\n".join(line.split()[0] for line in lines))
    return tmp_path


@pytest.mark.parametrize("method", ["pca", "tsne"])
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_a_map_is_drawn(run_of, texts, capsys, method, kind):
    output = texts / f"map.{kind}"
    found = answer(
        capsys, "map", str(run_of("adavae")), "--data", str(texts / "texts.txt"), "--output",
        str(output), "--labels", str(texts / "labels.txt"), "--method", method,
        "--perplexity", "5", "--first", FIRST, "--last", LAST, "--steps", "3", *SHORT,
    )  # fmt: skip
    begin = output.read_bytes()[:200]
    assert begin.startswith(b"\x89PNG") if kind == "png" else b"<svg" in begin or b"<?xml" in begin
    assert len(found["points"]) == len(found["labels"]) == 24
    assert len(found["path"]) == 3


def said(capsys, argv):
    with pytest.raises(SystemExit) as left:
        main(["latent", *argv])
        pytest.fail(f"no mistake: {argv}")
    assert left.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("pretrain:")]
    assert len(lines) == 1
    return lines[0]


def test_mistakes_are_one_line_each(run_of, texts, capsys):
    optimus, texts_file = str(run_of("optimus")), "texts.txt"
    (texts / "few.txt").write_text("one\ntwo\n")
    (texts / "z.json").write_text("[[1, 2]]")
    a_map = ["map", optimus, "--data", str(texts / texts_file), "--output", str(texts / "m.png")]
    for argv, message in (
        (["sing", optimus], "latent has no verb 'sing'"),
        (["encode", str(run_of("glm")), "--text", FIRST], "has no latent space"),
        (["encode", optimus, "--text", " "], "there is no text to read"),
        (["encode", optimus, "--text", FIRST * 20], "this model reads at most 64"),
        (["encode", optimus], "give either --text TEXT ... or --input FILE"),
        (["encode", optimus, "--input", "nowhere.txt"], "--input nowhere.txt cannot be read"),
        (["decode", optimus, "--vectors", str(texts / "z.json")], "must have 6 numbers each"),
        (["decode", optimus, "--vectors", str(texts / texts_file)], "cannot be read as JSON"),
        (["sample", optimus, "--num", "0"], "--num must be at least 1"),
        (["sample", optimus, "--seed", str(2**63)], "seed must lie in 0..2^63 - 1"),
        (["sample", optimus, "--top_p", "0.5"], "no effect with --strategy greedy"),
        (["sample", optimus, "--strategy", "sample", "--top_p", "2"], "top_p must lie in (0, 1]"),
        (["interpolate", optimus, "--first", FIRST], "arguments are required: last"),
        ([*a_map[:-1], str(texts / "m.gif")], "--output must end in .png or .svg"),
        ([*a_map, "--labels", str(texts / "few.txt")], "holds 2 labels for the 24 texts"),
        ([*a_map, "--max_texts", "2", "--labels", str(texts / "few.txt")], "holds 2 labels for"),
        ([*a_map, "--first", FIRST], "give both or neither"),
        ([*a_map, "--method", "tsne", "--perplexity", "20"], "must lie in 1 .. (texts - 1) / 3"),
        ([*a_map, "--labels", str(texts / "none.txt")], "none.txt cannot be read"),
    ):
        assert message in said(capsys, argv), argv
