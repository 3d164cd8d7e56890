"""A TensorBoard over event files, and the real browser that a person would open it with."""

import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

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


@contextmanager
def serve(runs: Path) -> Iterator[str]:
    """The address of a TensorBoard over `runs`, until it is left."""
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
def tensorboard() -> Callable[[Path], AbstractContextManager[str]]:
    """Opens a TensorBoard over a folder of runs, as a context that gives its address."""
    return serve


@pytest.fixture(scope="session")
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


def wait_for(browser: webdriver.Chrome, *expected: str) -> str:
    """Wait until all of `expected` stand on the page; its letters."""

    def there(page: webdriver.Chrome) -> str | None:
        words = page.execute_script(VISIBLE_TEXT)
        return words if all(e.replace(" ", "") in words for e in expected) else None

    try:
        return WebDriverWait(browser, 60).until(there)
    except TimeoutException:
        words = browser.execute_script(VISIBLE_TEXT)
        raise AssertionError(f"not on the page: {expected}; there is: {words[:2000]}") from None


@pytest.fixture(scope="session")
def see(browser: webdriver.Chrome) -> Callable[..., str]:
    """Waits until all of the given texts stand on the page."""
    return lambda *expected: wait_for(browser, *expected)
