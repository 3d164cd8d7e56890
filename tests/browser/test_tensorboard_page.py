"""TensorBoard as a person opens it: a real page in a real browser, over a run's own event files."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from pretrain.metrics import Metrics
from pretrain.run_folder import RunFolder

pytestmark = pytest.mark.browser

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,1000",
)
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
def address(runs: Path) -> Iterator[str]:
    """A TensorBoard over the runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(runs), "--port", str(port)]
    with subprocess.Popen(
        [*command, "--host", "127.0.0.1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        url = f"http://127.0.0.1:{port}/"
        for _ in range(600):
            assert server.poll() is None, "tensorboard ended"
            try:
                urllib.request.urlopen(url, timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield url
        server.terminate()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """Headless Chromium."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium and chromedriver are not installed (Debian: chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    opened = webdriver.Chrome(options=options, service=Service(driver))
    yield opened
    opened.quit()


# The letters a person sees, those inside shadow roots too; without spaces, since a tag is several
# elements.
VISIBLE_TEXT = """
function words(node) {
  if (node.nodeType === Node.TEXT_NODE) return node.textContent;
  if (["SCRIPT", "STYLE", "TEMPLATE"].includes(node.nodeName)) return "";
  const roots = node.shadowRoot ? [node.shadowRoot, ...node.childNodes] : [...node.childNodes];
  return roots.map(words).join(" ");
}
return words(document.body).replace(/\\s+/g, "");
"""


def _see(browser: webdriver.Chrome, *expected: str) -> str:
    """Wait until all of `expected` stand on the page; its letters."""

    def there(page: webdriver.Chrome) -> str | None:
        words = page.execute_script(VISIBLE_TEXT)
        return words if all(e.replace(" ", "") in words for e in expected) else None

    try:
        return WebDriverWait(browser, 60).until(there)
    except TimeoutException:
        words = browser.execute_script(VISIBLE_TEXT)
        raise AssertionError(f"not on the page: {expected}; there is: {words[:2000]}") from None


def test_runs_and_curves_are_on_the_page(browser: webdriver.Chrome, address: str) -> None:
    browser.get(f"{address}#timeseries")
    _see(browser, "first_run", "second_run", "loss/total_nats", "optimizer/learning_rate")

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


def test_filled_blanks_are_on_the_page(browser: webdriver.Chrome, address: str) -> None:
    browser.get(f"{address}#text")
    browser.refresh()
    _see(browser, "samples/filled_text", "the old clock remembers the morning")
