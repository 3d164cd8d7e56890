"""How a rank ends: what it alone met is said by it, and its own log says why."""

import logging
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
import torch

from pretrain import __main__
from pretrain.distributed.world import World
from pretrain.objectives.loss import ObjectiveModel
from pretrain.recording.run_folder import RunFolder
from pretrain.recording.run_log import log_end, log_to_file
from pretrain.settings.cli import Start, parse_train
from pretrain.settings.mistakes import AgreedError, LostRankError, NotMetError
from pretrain.training import beginning, train

DEBUG = str(Path(__file__).parents[2] / "launch" / "recipes" / "debug.yaml")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ValueError("a shard\nis damaged"), 2, "pretrain: rank 5: a shard is damaged\n"),
        (OSError(5, "Input/output error"), 2, "pretrain: rank 5: [Errno 5] Input/output error\n"),
        (LostRankError("a rank is gone"), 1, "pretrain: rank 5: a rank is gone\n"),
        (NotMetError("nobody came"), 75, "pretrain: rank 5: nobody came\n"),
        (AgreedError("rank 0 says it"), 2, ""),
    ],
)
def test_what_one_rank_met_is_said_by_it(
    error: Exception,
    code: int,
    said: str,
    shards: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def failing(*_: object) -> NoReturn:
        raise error

    def left(code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(train, "run", failing)
    monkeypatch.setattr(__main__, "leave_at_once", left)
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(SystemExit) as ended:
        __main__.main(["train", "--config", DEBUG, f"--data.shards={shards}"])
    assert (ended.value.code, capsys.readouterr().err) == (code, said)


@pytest.mark.parametrize("error", [ValueError("damaged"), KeyError("x"), AgreedError("all know")])
def test_a_rank_logs_what_ended_it(error: Exception, tmp_path: Path) -> None:
    handler = log_to_file(tmp_path, 0)
    try:
        raise error
    except type(error) as raised:
        log_end(raised)
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
    text = (tmp_path / "rank-0.log").read_text()
    assert f"ERROR ended by {type(error).__name__}: {error}" in text
    assert ("Traceback" in text) is not isinstance(error, AgreedError)


def test_a_rank_lost_while_the_run_is_set_up_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> NoReturn:
        raise RuntimeError("[/gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:1")

    alone = World(0, 1, 0, torch.device("cpu"), timeout_s=60)
    monkeypatch.setattr(train, "join_world", lambda *_: alone)
    monkeypatch.setattr(train, "run_in", lost)
    config, _ = parse_train(["--config", DEBUG])
    with pytest.raises(LostRankError, match=r"another rank ended .*Connection closed by peer"):
        train.run(config, Start())


class Alone(World):
    """A rank whose word is that of all."""

    def gather(self, value: Any) -> list[Any]:
        return [value]


@pytest.mark.parametrize("problem", [ValueError("not its shape"), OSError("cannot be read")])
def test_first_weights_that_rank_0_cannot_read_end_all(
    problem: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> NoReturn:
        raise problem

    monkeypatch.setattr(beginning, "open_source", refused)
    config, start = parse_train(["--config", DEBUG, "--init-from=other"])
    world = Alone(0, 1, 0, torch.device("cpu"), 60)
    rest: Any = (None, RunFolder(Path("unused")), start, world)
    monkeypatch.setattr(beginning, "shapes_of", lambda _: {})
    with pytest.raises(AgreedError, match=str(problem)):
        beginning.first_weights(config, *rest, lambda: cast(ObjectiveModel, None), None)


def test_a_resume_reads_no_folder_to_begin_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginning, "imported_folders", lambda _: ["gone"])
    config, start = parse_train(["--config", DEBUG, "--resume=auto"])
    world = Alone(0, 1, 0, torch.device("cpu"), 60)
    rest: Any = (None, RunFolder(Path("unused")), start, world)
    found = Path("checkpoints/step-00000010")
    assert beginning.first_weights(config, *rest, lambda: cast(ObjectiveModel, None), found) is None
