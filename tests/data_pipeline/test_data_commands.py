"""The commands as typed: what they print, their exit codes, one line where something is wrong."""

import json
import subprocess
import sys

import pytest

from data_pipeline.__main__ import main
from data_pipeline.cli import parse
from data_pipeline.preparing import output_folder

COMMANDS = [
    "prepare",
    "slices",
    "prepare-slice",
    "merge",
    "train-tokenizer",
    "inspect",
    "verify",
    "stats",
]
HEAVY = ("torch", "transformers", "datasets", "deepspeed", "tokenizers", "pyarrow", "fsspec")


@pytest.fixture
def shards(tmp_path, model_file, corpus_file, capsys):
    folder = tmp_path / "shards"
    arguments = ["--tokenizer", str(model_file), "--output", str(folder), "--validation", "0.2"]
    assert main(["prepare", "--input", str(corpus_file), *arguments]) == 0
    capsys.readouterr()
    return folder


def fails(arguments, capsys) -> str:
    """The one line a mistake is answered with."""
    try:
        code = main([str(a) for a in arguments])
    except SystemExit as left:
        code = left.code
    printed = capsys.readouterr()
    assert code == 2 and printed.out == ""
    assert printed.err.count("\n") == 1 and printed.err.startswith("data_pipeline: ")
    return printed.err


def test_help_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from data_pipeline.__main__ import main\n"
        f"for command in [[], *([c] for c in {COMMANDS})]:\n"
        "    try: main([*command, '--help'])\n"
        "    except SystemExit as left: assert left.code == 0\n"
        f"print('loaded:', [m for m in {HEAVY} if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("loaded: []\n")
    assert done.stdout.count("usage: data_pipeline") == 1 + len(COMMANDS)


def test_prepare_with_a_sentencepiece_model_loads_nothing_heavy(tmp_path, model_file, corpus_file):
    arguments = ["prepare", "--input", str(corpus_file), "--output", str(tmp_path / "s")]
    arguments += ["--tokenizer", str(model_file)]
    code = (
        "import sys\n"
        "from data_pipeline.__main__ import main\n"
        f"print(main({arguments}), [m for m in {HEAVY} if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"
    assert done.stderr == ""


def test_stats_prints_one_object(shards, capsys):
    assert main(["stats", str(shards), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    splits = printed["splits"]
    assert list(splits) == ["train", "validation"]
    for name in ("documents", "tokens", "shards"):
        assert printed[name] == splits["train"][name] + splits["validation"][name]
    assert printed["documents"] == 300 and printed["skipped"] == {}


def test_verify_prints_the_same_counts_and_what_is_damaged(shards, capsys):
    assert main(["verify", str(shards), "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["documents"] == 300 and whole["damaged"] == []
    path = shards / "train/00000.tokens"
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    assert main(["verify", str(shards), "--json"]) == 1
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)["damaged"]) == 1
    assert printed.err.startswith(f"data_pipeline: damaged: {path}")


@pytest.mark.parametrize("damage", ["absent", "cut", "edited", "no text"])
def test_a_damaged_manifest_is_damage(shards, capsys, damage):
    path = shards / "manifest.json"
    content = path.read_bytes()
    if damage == "absent":
        path.unlink()
    else:
        edited = content.replace(b'"documents": ', b'"documents": 1', 1)
        path.write_bytes({"cut": content[:900], "edited": edited, "no text": b"\xff"}[damage])
    assert main(["verify", str(shards), "--json"]) == 1
    printed = capsys.readouterr()
    (problem,) = json.loads(printed.out)["damaged"]
    assert str(shards) in problem and "manifest.json" in problem
    assert printed.err == f"data_pipeline: damaged: {problem}\n"
    assert main(["verify", str(shards)]) == 1
    assert capsys.readouterr().out == ""


def test_stats_for_people_hold_the_same_numbers(shards, capsys):
    assert main(["stats", str(shards)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["documents", "tokens", "shards", "tokens", "a", "document"]
    assert lines[1].split()[0] == "train" and lines[2].split()[0] == "validation"
    assert lines[-1] == "skipped: nothing"


def test_stats_plan_rows_of_a_given_length(shards, capsys):
    options = ["--row-tokens", "100", "--source-tokens", "48"]
    assert main(["stats", str(shards), "--json", *options]) == 0
    packing = json.loads(capsys.readouterr().out)["packing"]
    assert packing["row_tokens"] == 100 and 0 <= packing["padding_share"] < 0.3
    assert main(["stats", str(shards), *options]) == 0
    assert f"{packing['padding_share']:.2%} padding" in capsys.readouterr().out


def test_stats_of_several_folders_tell_their_shares(
    shards, corpus_file, model_file, tmp_path, capsys
):
    half = tmp_path / "half.txt"
    half.write_text("\n".join(corpus_file.read_text().splitlines()[:150]), encoding="utf-8")
    other = str(tmp_path / "half")
    arguments = ["--input", str(half), "--tokenizer", str(model_file), "--output", other]
    assert main(["prepare", *arguments]) == 0
    capsys.readouterr()
    assert main(["stats", str(shards), other, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    tokens = {f: c["splits"]["train"]["tokens"] for f, c in printed["folders"].items()}
    whole = printed["together"]
    assert whole["train_tokens"] == sum(tokens.values()) and whole["one_tokenizer"]
    assert whole["train_tokens_ratio"][other] == tokens[other] / sum(tokens.values())
    assert main(["stats", str(shards), other]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"{shards}:" in lines and f"{other}:" in lines
    assert f"  {whole['train_tokens_ratio'][other]:7.2%}  {other}" in lines


def test_stats_say_which_blanks_are_lost_and_clipped(shards, capsys):
    # 60 % of the text in spans of one token is more than lies one token apart from the next.
    options = ["--row-tokens", "50", "--source-tokens", "48"]
    options += ["--blanks.mask_ratio", "0.6", "--blanks.poisson_lambda", "0.1"]
    assert main(["stats", str(shards), "--json", *options]) == 0
    blanks = json.loads(capsys.readouterr().out)["packing"]["blanks"]
    assert blanks["spans_lost_no_room_in_row"] > 0 and blanks["spans_lost_text_too_short"] > 0
    assert blanks["targets_sentence"] == 0 < blanks["targets_token"]
    assert main(["stats", str(shards), *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, number in blanks.items():
        assert name.startswith("targets") or f"{name.replace('_', ' ')}: {number:,}" in lines
    assert f"targets: {blanks['targets_token']:,} token" in lines


def test_inspect_draws_a_row_of_the_shards_and_of_a_text(shards, capsys):
    assert main(["inspect", str(shards), "--document", "3", "--kind", "sentence"]) == 0
    assert "[sMASK]" in capsys.readouterr().out
    assert main(["inspect", str(shards), "--text", "the river rose", "--kind", "token"]) == 0
    assert "[MASK]" in capsys.readouterr().out


def test_a_finished_request_is_nothing_to_do(tmp_path, model_file, corpus_file, capsys):
    arguments = ["prepare", "--input", str(corpus_file), "--tokenizer", str(model_file)]
    arguments += ["--output", str(tmp_path / "s")]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert printed.out == first and "Nothing to do" in printed.err


def test_train_tokenizer_says_what_it_made(tmp_path, corpus_file, capsys):
    arguments = ["train-tokenizer", "--input", str(corpus_file), "--vocab-size", "350"]
    assert main([*arguments, "--output", str(tmp_path / "m.model")]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{tmp_path / 'm.model'}: 350 pieces. Skipped: nothing.\n"
    assert printed.err == ""


def test_mistakes_are_answered_in_one_line(tmp_path, model_file, corpus_file, capsys):
    prepare = ["prepare", "--tokenizer", model_file, "--output", tmp_path / "s", "--input"]
    assert "absent.txt does not exist" in fails([*prepare, tmp_path / "absent.txt"], capsys)
    assert "pad=end" in fails([*prepare, corpus_file, "--alias", "pad=end"], capsys)
    assert "'valdation'" in fails([*prepare, corpus_file, "--valdation", "0.1"], capsys)
    assert "validation" in fails([*prepare, corpus_file, "--validation", "much"], capsys)
    assert "verfy" in fails(["verfy"], capsys)
    assert "tokenizer" in fails(["prepare", "--input", corpus_file], capsys)
    assert "holds no manifest.json" in fails(["stats", tmp_path], capsys)
    assert "absent is no folder" in fails(["verify", tmp_path / "absent"], capsys)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    message = fails([*prepare, tmp_path / "latin.txt"], capsys)
    assert "latin.txt, line 1, byte 3: not valid utf-8" in message and "--encoding" in message


@pytest.mark.parametrize(
    ("command", "empty"),
    [
        ("prepare", "--input"),
        ("prepare", "--output"),
        ("prepare", "--tokenizer"),
        ("train-tokenizer", "--input"),
        ("train-tokenizer", "--output"),
    ],
)
def test_an_empty_name_is_not_this_folder(
    tmp_path, model_file, corpus_file, capsys, monkeypatch, command, empty
):
    (tmp_path / "here.txt").write_text("the river rose.\n")
    monkeypatch.chdir(tmp_path)
    given = {"--input": corpus_file, "--output": "made"}
    other = {"prepare": {"--tokenizer": model_file}, "train-tokenizer": {"--vocab-size": 370}}
    given |= other[command]
    message = fails([command, *(x for pair in (given | {empty: ""}).items() for x in pair)], capsys)
    assert message.startswith(f"data_pipeline: {empty} is empty (an unset shell variable?)")
    assert [p.name for p in tmp_path.iterdir()] == ["here.txt"]


def test_an_output_that_has_no_name_is_refused(tmp_path, model_file, corpus_file, capsys):
    prepare = ["prepare", "--tokenizer", model_file, "--input", corpus_file, "--output"]
    message = fails([*prepare, "/"], capsys)
    assert "--output / is the root of the file system. Name a place in it." in message


def test_options_may_stand_in_a_file(tmp_path, model_file, corpus_file):
    config = tmp_path / "prepare.yaml"
    config.write_text(
        f"input: [{corpus_file}]\ntokenizer: {model_file}\noutput: {tmp_path / 's'}\n"
        "validation: 0.1\n"
    )
    options = parse(["prepare", "--config", str(config), "--validation", "0.2"]).prepare
    assert options.input == [str(corpus_file)] and options.validation == 0.2


@pytest.mark.parametrize("command", ["prepare", "train-tokenizer"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x93\x00\xff", "not a YAML file of settings: 'utf-8' codec can't decode"),
        (b"input: [a\n", "not a YAML file of settings: while parsing"),
        (b"[1, 2]\n", "must hold settings as `validation: 0.01`, one a line."),
        (b"", "must hold settings as"),
        (b"input: 3\n", "input must be a list, as input: [a, b], got 3."),
        (b"input: a.txt\n", "input must be a list, as input: [a, b], got a.txt."),
        (b"input: [a, 3]\n", "input element 2 must be str, got 3."),
        (b"document: page\n", "document must be one of 'line', 'paragraph', 'file', got page."),
        (b"text-feld: a\n", "unknown setting 'text-feld'. Did you mean 'text-field'?"),
    ],
)
def test_a_mistake_in_a_settings_file_names_file_and_key(tmp_path, capsys, command, content, says):
    config = tmp_path / "a.yaml"
    config.write_bytes(content)
    message = fails([command, "--config", config], capsys)
    assert message.startswith(f"data_pipeline: {config}: {says}")
    assert message == fails([command, f"--config={config}"], capsys)


def test_a_settings_file_that_is_not_there_is_named(tmp_path, capsys):
    for path in (tmp_path / "a.yaml", tmp_path):
        assert f"--config {path} is not a file." in fails(["prepare", "--config", path], capsys)


def test_mistakes_in_types_are_readable(tmp_path, capsys):
    prepare = ["prepare", "--input", "a", "--tokenizer", "b", "--output", "c"]
    assert fails([*prepare, "--validation", "much"], capsys) == (
        "data_pipeline: validation must be float, got much.\n"
    )
    assert fails([*prepare, "--shard-tokns", "3"], capsys) == (
        "data_pipeline: unknown setting 'shard-tokns'. Did you mean 'shard-tokens'?\n"
    )


def test_an_unreadable_file_is_answered_in_one_line(tmp_path, model_file, capsys):
    (tmp_path / "tokenizer.model").mkdir()
    message = fails(
        ["prepare", "--input", tmp_path, "--tokenizer", model_file, "--output", tmp_path / "s"],
        capsys,
    )
    assert "holds no file ending in" in message


def test_a_limit_without_what_it_limits_is_refused(tmp_path, model_file, corpus_file, capsys):
    given = ["--input", corpus_file, "--output", tmp_path / "s", "--max-skipped", 5]
    for command in (["prepare", "--tokenizer", model_file], ["train-tokenizer", "--vocab-size", 9]):
        message = fails([*command, *given], capsys)
        assert "--max-skipped 5 has no effect without --on-error skip" in message


def test_rows_that_are_too_short_name_both_options(shards, capsys):
    message = fails(["stats", shards, "--row-tokens", 300], capsys)
    assert "--row-tokens must be at least --source-tokens + 2 = 514" in message


def test_an_unknown_encoding_is_told_the_known_ones(tmp_path, model_file, corpus_file, capsys):
    given = ["--input", corpus_file, "--output", tmp_path / "s", "--tokenizer", model_file]
    message = fails(["prepare", *given, "--encoding", "gb1803"], capsys)
    assert "Did you mean gb18030? Known are utf-8, utf-16, utf-32, latin-1," in message


def test_an_interpreter_without_the_libraries_names_the_cure(repository):
    command = [sys.executable, "-S", "-E", "-m", "data_pipeline", "verify", "x"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert " has no " in done.stderr and "Run `make setup`" in done.stderr


def test_a_mount_is_refused_before_the_work(tmp_path, model_file, corpus_file, capsys, monkeypatch):
    mounts, folder = tmp_path / "mounts", tmp_path / "bound here"
    place = str(folder).replace(" ", "\\040")
    mounts.write_text(f"36 35 98:0 /mnt1 {place} rw,noatime - ext3 /dev/root rw\n")
    folder.mkdir()
    monkeypatch.setattr(output_folder, "_MOUNTS", mounts)
    given = ["--input", corpus_file, "--output", folder, "--tokenizer", model_file]
    assert "is the root of a file system" in fails(["prepare", *given], capsys)
