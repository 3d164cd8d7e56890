"""The demo skips what is done, puts another corpus aside, and shows of a log what matters."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from demo import run
from demo.fills import ShownBlank
from demo.heldout import Comparison
from demo.launcher import deepspeed_command, environment, stream
from demo.report import page, read_steps, summary

ROOT = Path(__file__).parents[2]
BLANK = ShownBlank(
    text="We [MASK] go.",
    filled="We must go.",
    truth="will",
    truth_prob=0.25,
    truth_rank=2,
    truth_unigram_prob=0.01,
    candidates=[("must", 0.5), ("will", 0.25), ("can", 0.1)],
)
STEPS = [
    {"speed/step_seconds": 1.0, "speed/tokens_per_second": 100.0, "data/padding_ratio": 0.02},
    {"speed/step_seconds": 3.0, "speed/tokens_per_second": 200.0, "data/padding_ratio": 0.04},
]


def report() -> dict:
    without = {"model": 5.0, "unigram": 6.0, "bigram": 4.2}
    whole = {"model": 4.1, "unigram": 5.1, "bigram": 3.6}
    return summary(Comparison(whole, without, 700, 0.24), [BLANK], STEPS, "sotu")


@pytest.fixture
def house(tmp_path: Path, monkeypatch) -> Path:
    """A repository in which the demo of sotu is done."""
    (tmp_path / "launch/recipes").mkdir(parents=True)
    (tmp_path / run.RECIPE).write_text("name: demo\nsteps: 20\n")
    folder = tmp_path / "runs/demo"
    for name in ("corpus", "shards", "checkpoints"):
        (folder / name).mkdir(parents=True)
    (folder / "corpus.json").write_text('{"corpus": "sotu"}')
    (folder / "tokenizer.model").touch()
    (folder / "shards/manifest.json").touch()
    (folder / "checkpoints/latest").write_text("step-00000020\n")
    (folder / "report.json").write_text(json.dumps(report()))
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_second_run_does_nothing_and_says_so(house: Path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    monkeypatch.setattr(subprocess, "Popen", None)
    caplog.set_level("INFO")
    shown = run.run_demo("sotu")
    assert "1.00 nats below the unigram" in shown
    skipped = [m for m in caplog.messages if "done before, skipped" in m]
    assert [m.split(": ")[1] for m in skipped] == [
        "text", "tokenizer", "shards", "training", "report",
    ]  # fmt: skip


def test_a_longer_training_goes_on_and_reports_anew(house: Path, monkeypatch) -> None:
    commands = []

    def pretend(command, env, log) -> int:
        commands.append(command)
        (house / "runs/demo/checkpoints/latest").write_text("step-00000030\n")
        return 0

    monkeypatch.setattr(run, "stream", pretend)
    run.train(run.Demo("sotu", 30))
    assert commands[0][-2:] == ["--steps", "30"]
    assert not (house / "runs/demo/report.json").exists()


def test_a_training_that_fails_names_its_log(house: Path, monkeypatch) -> None:
    monkeypatch.setattr(run, "stream", lambda command, env, log: 1)
    with pytest.raises(ValueError, match=r"exit code 1 at step 20 of 30.*training\.log"):
        run.train(run.Demo("sotu", 30))


def test_the_demo_of_another_corpus_is_put_aside_and_comes_back(house: Path) -> None:
    run.make_room(run.Demo("wikipedia", 20))
    assert not (house / "runs/demo/report.json").exists()
    assert (house / "runs/demo-sotu/report.json").exists()
    run.make_room(run.Demo("sotu", 20))
    assert (house / "runs/demo/report.json").exists()
    assert not (house / "runs/demo-sotu").exists()
    assert (house / "runs/demo-wikipedia").exists()


def test_the_report_has_the_promised_keys() -> None:
    made = report()
    for name in ("heldout_nats_per_blank_token", "heldout_nats_per_blank_token_without_end"):
        assert sorted(made[name]) == ["bigram", "model", "unigram"]
    assert made["steps"] == 2
    assert made["padding_share"] == pytest.approx(0.03)
    assert made["tokens_per_s"] == pytest.approx((100 + 600) / 4)
    assert made["filled"][0]["text"] == "We [MASK] go."
    assert made["filled"][0]["filled"] == "We must go."
    json.dumps(made)


def test_the_page_says_what_the_truth_got() -> None:
    shown = page(report(), "runs/demo")
    assert "truth:  will, probability 25.00 %, rank 2 (unigram 1.00 %)" in shown
    assert 'best: "must" 50.0 %, "will" 25.0 %, "can" 10.0 %' in shown
    assert "tensorboard --logdir runs/demo/tensorboard" in shown
    assert "Try next: python -m pretrain generate runs/demo" in shown


def test_evaluations_are_no_steps(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(STEPS[0]) + "\n" + '{"validation/glm_total_nats": 5.0}\n')
    assert read_steps(path) == [STEPS[0]]


def test_the_log_keeps_everything_and_the_terminal_what_matters(tmp_path: Path, capfd) -> None:
    lines = [
        "[2026-01-01 00:00:00,000] [INFO] [launch.py:245:main] process 1 spawned",
        "12:00:00 step 1/9 | loss 7.0",
        "12:00:01 step 2/9 | loss 6.0",
        "12:00:02 step 2 | held out | glm_total_nats 6.1",
    ]
    script = f"print({chr(10).join(lines)!r}); import sys; sys.exit(3)"
    log = tmp_path / "training.log"
    assert stream([sys.executable, "-c", script], {}, log) == 3
    assert log.read_text().splitlines() == lines
    assert capfd.readouterr().err.splitlines() == [f"  {lines[1]}", f"  {lines[3]}"]


def test_the_launcher_runs_this_interpreter_on_a_port_of_its_own() -> None:
    command = deepspeed_command(["--num_gpus", "2", "F"], port=1234)
    assert command[:4] == [sys.executable, "-m", "deepspeed.launcher.runner", "--master_port=1234"]
    assert command[-3:] == ["--num_gpus", "2", "F"]
    settings = environment(2)
    assert settings["PYTHON"] == sys.executable
    assert int(settings["OMP_NUM_THREADS"]) >= 1


def test_a_finished_demo_is_shown_without_torch(house: Path) -> None:
    script = "import sys, demo.run, demo.report; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], check=True)


def test_ctrl_c_waits_for_the_ranks_to_save(tmp_path: Path) -> None:
    program = (
        "import signal, sys, time\n"
        "def save(*_):\n"
        "    time.sleep(0.5); print('saved', flush=True); sys.exit(85)\n"
        "signal.signal(signal.SIGINT, save)\n"
        "print('ready', flush=True)\n"
        "time.sleep(30)\n"
    )
    code = (
        "import sys; from pathlib import Path; from demo.launcher import stream\n"
        "try: stream([sys.executable, '-c', sys.argv[1]], {}, Path(sys.argv[2]))\n"
        "except KeyboardInterrupt: sys.exit(130)\n"
    )
    log = tmp_path / "log"
    with subprocess.Popen(
        [sys.executable, "-c", code, program, str(log)], cwd=ROOT, start_new_session=True
    ) as demo:
        while not log.exists() or "ready" not in log.read_text():
            time.sleep(0.05)
            assert demo.poll() is None
        os.killpg(demo.pid, signal.SIGINT)
        assert demo.wait(timeout=20) == 130
    assert "saved" in log.read_text()
