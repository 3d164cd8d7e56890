"""TensorBoard as a person opens it: a real page in a real browser, over a run's own event files."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from pretrain.recording.run_folder import RunFolder
from pretrain.training.metrics import Metrics

pytestmark = pytest.mark.browser

FILLED = "the old clock **remembers** the morning"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of 30 steps with curves, the second with a filled text."""
    folder = tmp_path_factory.mktemp("runs")
    for number, name in enumerate(("first_run", "second_run")):
        (folder / name).mkdir()
        record = Metrics(RunFolder(folder / name), first_step=1, total_steps=30)
        for step in range(1, 31):
            scalars = {
                "loss/total_nats": 5.0 / step + number,
                "optimizer/learning_rate": 1e-3 / step,
                "optimizer/gradient_norm": 1.0,
                "speed/tokens_per_second": 1000.0,
            }
            record.step(step, scalars)
        record.text(30, "samples/filled_text", FILLED)
        record.close()
    return folder


@pytest.fixture(scope="module")
def address(
    runs: Path, tensorboard: Callable[[Path], AbstractContextManager[str]]
) -> Iterator[str]:
    """A TensorBoard over the runs."""
    with tensorboard(runs) as url:
        yield url


def test_runs_and_curves_are_on_the_page(
    browser: webdriver.Chrome, address: str, see: Callable[..., str]
) -> None:
    browser.get(f"{address}#timeseries")
    see("first_run", "second_run", "loss/total_nats", "optimizer/learning_rate")

    def curves(page: webdriver.Chrome) -> bool:
        # A curve is drawn into the svg or canvas of its card; an empty one says so instead.
        cards = page.find_elements(By.CSS_SELECTOR, "card-view")
        drawn = [c for c in cards if c.find_elements(By.CSS_SELECTOR, "svg path, canvas")]
        return len(drawn) >= 2

    WebDriverWait(browser, 60).until(curves, "no curve was drawn")
    picture = os.environ.get("PALIMPSEST_PICTURE")
    if picture:
        time.sleep(2)  # the lines grow for a moment
        browser.save_screenshot(picture)


def test_filled_blanks_are_on_the_page(
    browser: webdriver.Chrome, address: str, see: Callable[..., str]
) -> None:
    browser.get(f"{address}#text")
    browser.refresh()
    see("samples/filled_text", "the old clock remembers the morning")
