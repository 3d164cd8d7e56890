"""TensorBoard over the runs of a job array: names that say what differs, HParams, whole curves."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from selenium import webdriver

from pretrain.recording.run_folder import RunFolder
from pretrain.training.metrics import Metrics

pytestmark = pytest.mark.browser

RATES = {"77_0-lr=0.001": 0.001, "77_1-lr=0.02": 0.02, "77_2-lr=0.3": 0.3}
RESUMED = "77_1-lr=0.02"
TAG = "loss/total_nats"


def _train(folder: Path, first: int, last: int, rate: float) -> None:
    folder.mkdir(exist_ok=True)
    settings = {"optimizer.lr": rate}
    record = Metrics(RunFolder(folder), first_step=first, total_steps=12, settings=settings)
    for step in range(first, last + 1):
        record.step(step, {TAG: 1 / step + first, "optimizer/learning_rate": rate})
    record.evaluation(last, {"validation/total_nats": 2.5 + rate})
    record.finish(None)
    record.close()


@pytest.fixture(scope="module")
def address(
    tmp_path_factory: pytest.TempPathFactory,
    tensorboard: Callable[[Path], AbstractContextManager[str]],
) -> Iterator[str]:
    """A TensorBoard over three runs; the second got to step 8, and went on from step 4 twice."""
    folder = tmp_path_factory.mktemp("array")
    for name, rate in RATES.items():
        if name == RESUMED:
            _train(folder / name, 1, 8, rate)
            _train(folder / name, 5, 9, rate)
            _train(folder / name, 5, 12, rate)
        else:
            _train(folder / name, 1, 12, rate)
    with tensorboard(folder) as url:
        yield url


def test_the_runs_of_an_array_are_named_by_what_differs(
    browser: webdriver.Chrome, address: str, see: Callable[..., str]
) -> None:
    browser.get(f"{address}#timeseries")
    see(*RATES, TAG, "optimizer/learning_rate")


def test_a_resumed_run_is_one_curve(browser: webdriver.Chrome, address: str) -> None:
    browser.get(address)
    browser.set_script_timeout(60)
    script = """
    const [tag, runs, done] = arguments;
    const body = new FormData();
    body.append("requests", JSON.stringify(runs.map(run => ({plugin: "scalars", tag, run}))));
    const wanted = "experiment/defaultExperimentId/data/plugin/timeseries/timeSeries";
    fetch(wanted, {method: "POST", body}).then(r => r.text()).then(done, e => done(String(e)));
    """
    runs = [f"{name}/tensorboard" for name in RATES]
    found = json.loads(browser.execute_async_script(script, TAG, runs))
    curves = {
        run: [(point["step"], point["value"]) for point in points]
        for series in found
        for run, points in series["runToSeries"].items()
    }
    assert sorted(curves) == sorted(runs)
    assert all([step for step, _ in curve] == list(range(1, 13)) for curve in curves.values())
    resumed = [value for _, value in curves[f"{RESUMED}/tensorboard"]]
    assert resumed == pytest.approx([1 / s + (1 if s < 5 else 5) for s in range(1, 13)], rel=1e-6)


def test_the_hparams_tab_shows_settings_beside_results(
    browser: webdriver.Chrome, address: str, see: Callable[..., str]
) -> None:
    browser.get(f"{address}#hparams")
    browser.refresh()
    see("optimizer.lr", "validation/total_nats", "0.0010000", "0.020000", "0.30000", "2.8000")
    picture = os.environ.get("PALIMPSEST_HPARAMS_PICTURE")
    if picture:
        browser.save_screenshot(picture)
