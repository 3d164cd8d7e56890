"""docs/data-format.md shows what really happens: its example is run and compared to the byte."""

import re
import shlex

import pytest

from data_pipeline.__main__ import main


@pytest.fixture(scope="module")
def page(repository) -> str:
    return (repository / "docs/data-format.md").read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def dump(content: bytes) -> str:
    """Sixteen bytes a line in pairs, as `xxd` prints them."""
    starts = range(0, len(content), 16)
    return "".join(f"{at:08x}  {content[at : at + 16].hex(' ', -2)}\n" for at in starts)


def test_the_example_is_true_to_the_byte(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_vocabulary, read = blocks(page, "python")
    (command,) = blocks(page, "bash")
    printed, tokens, index = blocks(page, "text")
    exec(make_vocabulary, {})
    (tmp_path / "corpus.jsonl").write_text(blocks(page, "json")[0], encoding="utf-8")
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "data_pipeline"]
    assert main(words[3:]) == 0
    assert capsys.readouterr().out == printed
    assert dump((tmp_path / "shards/train/00000.tokens").read_bytes()) == tokens
    assert dump((tmp_path / "shards/train/00000.index").read_bytes()) == index
    _check_what_is_read(read)


def _check_what_is_read(code: str) -> None:
    """Every line with a comment gives the numbers and the quoted text its comment starts with."""
    names: dict[str, object] = {}
    for line in code.splitlines():
        if "#" not in line:
            exec(line, names)
            continue
        call, comment = line.split("#")
        value = eval(call.strip(), names)
        said = re.findall(r'\d+|"[^"]*"', comment)
        if isinstance(value, str):
            assert said == [f'"{value}"']
            continue
        arrays = value if isinstance(value, tuple) else (value,)
        numbers = [str(n) for array in arrays for n in array.tolist()]
        assert said[: len(numbers)] == numbers


def test_every_command_at_the_top_is_understood(page):
    from data_pipeline.cli import parse

    whole_lines = page.replace("\\\n", " ")
    commands = re.findall(r"^    python -m data_pipeline (.*)$", whole_lines, re.MULTILINE)
    assert {parse(shlex.split(c)).command for c in commands} == {
        "train-tokenizer",
        "prepare",
        "slices",
        "prepare-slice",
        "merge",
        "import-megatron",
        "stats",
        "inspect",
        "verify",
    }
