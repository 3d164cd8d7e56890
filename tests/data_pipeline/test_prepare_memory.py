"""The memory that prepare needs does not grow with the input."""

import gzip
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from data_pipeline.storage.manifest import read_manifest

LIMIT_BYTES = 1_000_000_000  # of three processes together


def write_lines(path: Path, size_bytes: int, words: list[str]) -> int:
    """Lines of one to 30 words behind a number of their own; gives how many there are."""
    rng = random.Random(path.name)
    stock = [" ".join(rng.choices(words, k=rng.randint(1, 30))) for _ in range(4999)]
    is_compressed = path.suffix == ".gz"
    written = number = 0
    with gzip.open(path, "wt", 1) if is_compressed else path.open("w") as file:
        while written < size_bytes:
            written += file.write(f"{number} {stock[number % len(stock)]}\n")
            number += 1
    return number


def peak_bytes(process: subprocess.Popen) -> int:
    """The largest sum of the resident memory of a process and its children, ten looks a second."""
    peak, whole = 0, psutil.Process(process.pid)
    while process.poll() is None:
        try:
            tree = [whole, *whole.children(recursive=True)]
            peak = max(peak, sum(p.memory_info().rss for p in tree))
        except psutil.NoSuchProcess:
            pass
        time.sleep(0.1)
    return peak


@pytest.mark.slow
def test_two_gigabytes_need_no_more_memory_than_two_hundred_megabytes(tmp_path, model_file):
    """A large file in slices and one compressed slice of 0.5 GB, duplicates looked for; takes five
    to fifteen minutes and 7 GB of disk."""
    words = Path(__file__).with_name("conftest.py").read_text().split()
    peaks = {}
    for scale in (0.1, 1.0):
        folder = tmp_path / f"in{scale}"
        folder.mkdir()
        written = write_lines(folder / "a.txt", int(1.5e9 * scale), words)
        written += write_lines(folder / "b.txt.gz", int(0.5e9 * scale), words)
        command = [sys.executable, "-m", "data_pipeline", "prepare", "--input", str(folder)]
        command += ["--tokenizer", str(model_file), "--output", str(tmp_path / f"out{scale}")]
        process = subprocess.Popen([*command, "--workers", "2", "--dedup", "exact"])
        peaks[scale] = peak_bytes(process)
        assert process.returncode == 0
        print(f"{scale * 2e9:.0f} bytes: {peaks[scale] / 1e6:.0f} MB")
        manifest = read_manifest(tmp_path / f"out{scale}")
        assert manifest.documents + manifest.skipped.get("duplicate", 0) == written
    assert max(peaks.values()) < LIMIT_BYTES, peaks
    assert peaks[1.0] < 2 * peaks[0.1], peaks
