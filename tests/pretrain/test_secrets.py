"""What a run writes, and what hands it over, holds no secret of the places it reads from."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import fsspec
import pytest

from pretrain import __main__
from pretrain.recording.run_folder import RunFolder
from pretrain.recording.run_log import log_to_file
from pretrain.recording.status import note_failure
from pretrain.settings import told as told_module
from pretrain.settings.cli import parse_train
from pretrain.settings.told import hide, told
from pretrain.training import train

DEBUG = str(Path(__file__).parents[2] / "launch" / "recipes" / "debug.yaml")
SECRET, OTHER = "wJalrXUtnFEMIK7MDENG", "AKq9Zx8Yw7Vu6Ts5"
PLACES = {
    "user and password": f"https://user:{SECRET}@host/shards",
    "token": f"https://host/shards?token={SECRET}",
    "SAS": f"https://acc.blob.core.windows.net/c/shards?sv=2024&sig={SECRET}&se=2027",
    "AWS keys": f"s3://AKIAIOSFODNN7:{SECRET}@bucket/shards",
    "chained": f"simplecache::s3://AKIAIOSFODNN7:{SECRET}@bucket/shards",
}


@pytest.fixture(autouse=True)
def nothing_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told_module, "_urls", set())


def files_with(secret: str, *folders: Path) -> list[str]:
    """The files in which a secret stands, as it is or in the name."""
    return [
        str(path)
        for folder in folders
        for path in folder.rglob("*")
        if secret in path.name or (path.is_file() and secret.encode() in path.read_bytes())
    ]


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_the_files_of_a_run_and_its_log_hold_none(place: str, tmp_path: Path) -> None:
    corpora = f"[{{shards: '{place}', weight: 1.0, name: new}}]"
    config, start = parse_train(
        ["--config", DEBUG, "--data.shards=null", "--data.corpora", corpora,
         "--data.local_cache", "/nvme", "--init-from", place, "--steps", "7"]
    )  # fmt: skip
    folder = RunFolder(tmp_path)
    comet = {"api_key": SECRET, "project": "p", "tokens": [SECRET], "url": f"https://{SECRET}@h/x"}
    deepspeed = {"comet": comet, "train_batch_size": 8}
    folder.describe(config, deepspeed)
    folder.note_origin(start.init_from)
    handler = log_to_file(folder.logs, 0)
    try:
        logging.getLogger("pretrain").error("no answer from %s", place)
        raise OSError(f"{place}: refused, with key {SECRET}")
    except OSError as error:
        logging.getLogger("pretrain").exception("as a library words it")
        note_failure(tmp_path, 7, error)
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
    assert files_with(SECRET, tmp_path) == []
    assert "steps: 7" in folder.config.read_text()
    written = json.loads((tmp_path / "ds_config.json").read_text())
    blotted = {"api_key": "***", "project": "p", "tokens": ["***"], "url": "https://h/x"}
    assert written == {"comet": blotted, "train_batch_size": 8}
    assert "OSError: " in (tmp_path / "status.json").read_text()
    assert "Traceback" in (tmp_path / "logs/rank-0.log").read_text()


def test_another_secret_of_the_same_place_is_no_change(tmp_path: Path) -> None:
    def config(secret: str) -> Any:
        place = f"https://host/shards?token={secret}"
        return parse_train(
            ["--config", DEBUG, "--data.shards", place, "--data.local_cache", "/nvme"]
        )[0]

    folder = RunFolder(tmp_path)
    folder.describe(config(SECRET), {})
    assert folder.changes(config(OTHER)) == []


def test_what_ends_a_start_holds_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: object) -> NoReturn:
        raise ValueError(f"bad key {SECRET} for https://user:{SECRET}@host/x")

    def left(code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(train, "run", failing)
    monkeypatch.setattr(__main__, "leave_at_once", left)
    with pytest.raises(SystemExit):
        __main__.main(["train", "--config", DEBUG, "--data.shards", PLACES["token"],
                       "--data.local_cache", "/nvme"])  # fmt: skip
    assert capsys.readouterr().err == "pretrain: rank 0: bad key *** for https://host/x\n"
    entry = f"{{shards: '{PLACES['SAS']}', weight: 1.0}}"
    twice = f"[{entry}, {entry}]"
    with pytest.raises(SystemExit):
        parse_train(["--config", DEBUG, "--data.shards=null", f"--data.corpora={twice}"])
    said = capsys.readouterr().err
    assert "is named twice" in said and SECRET not in said


def test_a_sweep_over_places_names_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = tmp_path / "places.yaml"
    places = json.dumps([PLACES["token"], f"https://host/other?token={SECRET}"])
    sweep.write_text(
        f"recipe: {DEBUG}\nsettings: {{data.local_cache: /nvme}}\ngrid: {{data.shards: {places}}}\n"
    )
    with pytest.raises(SystemExit) as ended:
        __main__.main(["sweep", str(sweep)])
    said = capsys.readouterr()
    assert ended.value.code == 0 and "https://host/other" in said.out
    _, start = parse_train(["--sweep", str(sweep), "--task", "1"])
    assert start.task is not None
    folder = RunFolder(tmp_path / "runs" / start.task.name)
    folder.path.mkdir(parents=True)
    folder.note_task(start.task)
    assert folder.swept() == ["data.shards"]
    assert SECRET not in said.out + said.err and files_with(SECRET, tmp_path / "runs") == []


def test_words_of_a_text_are_left_alone() -> None:
    hide({"shards": "https://host/x?version=main&region=east"})
    assert told("the least remaining domain") == "the least remaining domain"


def test_texts_keep_their_blanks(tmp_path: Path) -> None:
    text = "https://host/x?y=1 is a [MASK] page"
    config, _ = parse_train(["--config", DEBUG, "--evaluation.texts", json.dumps([text])])
    folder = RunFolder(tmp_path)
    folder.describe(config, {})
    assert "is a [MASK] page" in folder.config.read_text()


def test_a_run_behind_a_url_goes_on_and_is_handed_over_without_its_secret(
    shards: Path, tmp_path: Path
) -> None:
    """Two starts with a signature of their own each, as a storage account hands them out."""
    home = tmp_path / "shared"
    home.mkdir()

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "pretrain", *words], cwd=tmp_path, text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout

    def start(secret: str, *more: str) -> str:
        (home / f"shards?sig={secret}").symlink_to(shards)  # how fsspec opens this file:// URL
        place, cache = f"file://{home}/shards?sig={secret}", str(tmp_path / "nvme")
        words = ["--config", DEBUG, "--steps", "4", "--data.shards", place]
        words += ["--data.local_cache", cache, "--evaluation.texts", '["the river [MASK]."]']
        return run("train", *words, *more)

    assert fsspec.core.url_to_fs(f"file://{home}/shards?sig=x")[1] == f"{home}/shards?sig=x"
    said = start(SECRET, "--stop_at_step", "2") + start(OTHER, "--resume", "auto")
    assert "resumed from" in said and "done: step 4 of 4" in said
    assert "data.shards: " not in said
    said += run("export", "runs/debug", "--output", "out") + run("compare", "runs/debug")
    said += run("status", "runs/debug")
    for secret in (SECRET, OTHER):
        assert secret not in said
        assert files_with(secret, *(tmp_path / name for name in ("runs", "out", "nvme"))) == []
