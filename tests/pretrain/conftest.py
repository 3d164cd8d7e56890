"""Real shards of a small written corpus, and ranks started as a launcher starts them."""

import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from data_pipeline.preparing.prepare import PrepareSettings, prepare
from data_pipeline.preparing.train_tokenizer import TokenizerSettings, train_tokenizer

ROOT = Path(__file__).parents[2]
SUBJECTS = ["the river", "a teacher", "our house", "the old clock", "every ship", "a small bird"]
VERBS = ["sees", "carries", "follows", "writes about", "remembers", "leaves"]
OBJECTS = ["the morning", "its letters", "a green field", "the city", "two stones", "no one"]


def _document(rng: random.Random) -> str:
    sentences = [
        f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)}."
        for _ in range(rng.choice((1, 1, 2, 3, 8, 30)))
    ]
    return " ".join(sentences)


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 documents of 5 to 250 tokens, a tenth of them for validation."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(5)
    text = folder / "text.txt"
    text.write_text("\n".join(_document(rng) for _ in range(400)) + "\n", encoding="utf-8")
    model = folder / "tokenizer.model"
    train_tokenizer(TokenizerSettings(input=[str(text)], output=str(model), vocab_size=310))
    prepare(
        PrepareSettings(
            input=[str(text)],
            tokenizer=str(model),
            output=str(folder / "shards"),
            validation=0.1,
        )
    )
    return folder / "shards"


def rank_environments(world_size: int) -> list[dict[str, str]]:
    """What a launcher would set for each rank of a new process group on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = os.environ | {
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        # What these tests compare is fp32 on CPU ranks, whatever else the machine has.
        "CUDA_VISIBLE_DEVICES": "",
        "DS_ACCELERATOR": "cpu",
    }
    return [common | {"RANK": str(r), "LOCAL_RANK": str(r)} for r in range(world_size)]


@pytest.fixture(scope="session")
def environments() -> Callable[[int], list[dict[str, str]]]:
    """Gives the environment of each rank of a new process group."""
    return rank_environments


@pytest.fixture(scope="session")
def start_ranks() -> Callable[..., list[subprocess.Popen[str]]]:
    """Starts `python ARGV...` once a rank; output goes to `log.rank`."""

    def start(world_size: int, argv: list[str], log: Path) -> list[subprocess.Popen[str]]:
        started = []
        for rank, environment in enumerate(rank_environments(world_size)):
            with open(f"{log}.{rank}", "w", encoding="utf-8") as output:
                started.append(
                    subprocess.Popen(
                        [sys.executable, *argv],
                        env=environment,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        text=True,
                        cwd=log.parent,
                    )
                )
        return started

    return start


@pytest.fixture(scope="session")
def run_ranks(
    start_ranks: Callable[..., list[subprocess.Popen[str]]],
) -> Callable[..., list[int]]:
    """Starts the ranks and waits; returns their exit codes, asserting 0 unless told otherwise."""

    def run(
        world_size: int, argv: list[str], log: Path, *, succeeds: bool = True, timeout_s: int = 240
    ) -> list[int]:
        codes = [p.wait(timeout=timeout_s) for p in start_ranks(world_size, argv, log)]
        if succeeds:
            said = "\n".join(Path(f"{log}.{r}").read_text()[-3000:] for r in range(world_size))
            assert codes == [0] * world_size, said
        return codes

    return run
