"""launch/sbatch.bash reads options as sbatch does: in every form, and where they end."""

import os
import re
import shutil
import string
import subprocess
from pathlib import Path

import pytest

UNKNOWN = "unrecognized option"  # of newer versions than the one that is installed


def read(repository: Path, *words: str) -> tuple[dict[str, str], int]:
    """The options that words of a command line give, and how many words they are."""
    program = f""". '{repository}/launch/sbatch.bash'
declare -A found=()
read_options found "$@"
printf '%s\\0' "$num_read"
for name in "${{!found[@]}}"; do printf '%s\\0' "$name=${{found[$name]}}"; done"""
    done = subprocess.run(
        ["bash", "-euc", program, "bash", *words], capture_output=True, text=True, check=True
    )
    num_read, *pairs = done.stdout.split("\0")[:-1]
    return dict(pair.split("=", 1) for pair in pairs), int(num_read)


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (["--chdir=/a b"], "/a b"),
        (["--chdir", "/a b"], "/a b"),
        (["--chd=/a b"], "/a b"),
        (["--chd", "/a b"], "/a b"),
        (["-D/a b"], "/a b"),
        (["-D", "/a b"], "/a b"),
        (["-HvD/a b"], "/a b"),
        (["-vD", "/a b"], "/a b"),
        (["-D/other", "--chdir=/a b"], "/a b"),  # the last one counts
    ],
)
def test_every_form_gives_the_value(words: list[str], folder: str, repository: Path) -> None:
    given, num_read = read(repository, *words, "t.sbatch", "-D/of/the/template")
    assert (given["chdir"], num_read) == (folder, len(words))


@pytest.mark.parametrize(
    ("words", "options", "rest"),
    [
        ("-J a.sbatch -pgpu t", {"job-name": "a.sbatch", "partition": "gpu"}, "t"),
        ("--comment -p t -N2", {"comment": "-p"}, "t -N2"),  # a value is no option
        ("--exclusive --nice t", {"exclusive": "", "nice": ""}, "t"),  # theirs stand behind =
        ("--exclusive=user -k t", {"exclusive": "user", "no-kill": ""}, "t"),
        ("-N 2 : -N3 -- t", {"nodes": "3"}, "t"),
        ("--plugin=x --of-a-site y t.sbatch", {"plugin": "x", "of-a-site": "y"}, "t.sbatch"),
        ("--plugin t.sbatch", {"plugin": ""}, "t.sbatch"),
        ("-n", {"ntasks": ""}, ""),
    ],
)
def test_options_end_where_sbatch_ends_them(
    words: str, options: dict[str, str], rest: str, repository: Path
) -> None:
    given, num_read = read(repository, *words.split())
    assert (given, " ".join(words.split()[num_read:])) == (options, rest)


@pytest.fixture
def sbatch(tmp_path: Path):
    """What the real sbatch says to one word; it asks no SLURM."""
    if shutil.which("sbatch") is None:
        pytest.skip("no sbatch (Debian: apt-get install slurm-client)")
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=n\nPartitionName=p Nodes=n\n")

    def said(word: str) -> str:
        done = subprocess.run(
            ["sbatch", word],
            env={**os.environ, "SLURM_CONF": str(conf)},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=20,
        )  # fmt: skip
        return done.stdout + done.stderr

    return said


def test_the_real_sbatch_takes_values_where_we_do(sbatch, repository: Path) -> None:
    program = f". '{repository}/launch/sbatch.bash'; echo \"$sbatch_values\"; echo :; "
    program += 'echo "$sbatch_flags"; echo :; declare -p sbatch_letters'
    told = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    values, flags, letters = (part.strip() for part in told.stdout.split(":\n"))
    letter_of = dict(re.findall(r'\[(\w)\]="([\w-]+)"', letters))
    for name in values.split():
        said = sbatch(f"--{name}")
        assert "requires an argument" in said or UNKNOWN in said, name
    for name in flags.split():
        assert "requires an argument" not in sbatch(f"--{name}"), name
    for letter in string.ascii_letters:
        said, name = sbatch(f"-{letter}"), letter_of.get(letter)
        assert ("invalid option" in said) == (name is None), letter
        assert ("requires an argument" in said) == (name in values.split()), letter
    listed = re.findall(r"^ +(?:-\w[, ] *)?--([\w-]+)", sbatch("--help"), re.M)
    assert len(listed) > 80
    assert set(listed) <= {*values.split(), *flags.split()}
