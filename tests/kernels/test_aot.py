"""Kernels are compiled for chips that are not here: no atomics, few spills, shared memory fits."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)
FAST = {80: "key_gradient 64", 90: "forward 64"}


def compile_all(
    repository: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kernels.aot", *arguments],
        cwd=repository,
        env={"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("chip", list(FAST))
def test_a_kernel_compiles_for_each_chip(repository, tmp_path, chip):
    done = compile_all(
        repository,
        *("--chips", str(chip), "--kernels", FAST[chip]),
        TRITON_CACHE_DIR=str(tmp_path),
        TRITON_INTERPRET="1",  # which it has to get rid of
    )
    assert done.returncode == 0, done.stderr
    assert "Atomics: none in any of them." in done.stdout
    assert ("wgmma" if chip == 90 else "mma.sync") in done.stdout


def test_a_kernel_that_takes_too_much_is_named(repository, tmp_path):
    script = (
        "from kernels.aot import resources; resources.SHARED_BYTES[80] = 1000;"
        "import sys; sys.argv[1:] = ['--chips', '80', '--kernels', 'embedding sum_gradient'];"
        "from kernels.aot.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=repository,
        env={"PATH": "/usr/bin:/bin", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "embedding sum_gradient on sm_80 takes" in done.stderr


def test_an_unknown_kernel_is_refused_with_the_names_of_all(repository):
    done = compile_all(repository, "--kernels", "foward 64")
    assert done.returncode == 2
    assert "no kernel 'foward 64'. There are: forward 32, " in done.stderr


@pytest.mark.slow
def test_every_kernel_and_head_width_compiles_for_both_chips(repository, tmp_path):
    """58 compilations: three minutes on a quiet core."""
    done = compile_all(repository, TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "Atomics: none in any of them." in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "slots"), [("fp32", 1), ("fp16", 0), ("bf16", 4)])
def test_wide_heads_compile_in_every_dtype_and_with_many_slots(repository, tmp_path, dtype, slots):
    """A minute each."""
    done = compile_all(
        repository,
        *("--dtype", dtype, "--slots", str(slots), "--kernels"),
        *(f"{name} 128" for name in ("forward", "query_gradient", "key_gradient")),
        TRITON_CACHE_DIR=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert f"{dtype}, slots of a document: {slots}. Atomics: none" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.6.0", "3.8.0"])
def test_the_source_compiles_on_other_tritons(repository, tmp_path, version):
    """Two minutes each: pip puts the other triton into a folder of its own, before ours."""
    folder = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    fetched = subprocess.run(
        [*pip, f"triton=={version}"], capture_output=True, text=True, check=False
    )
    if fetched.returncode:
        pytest.skip(f"triton {version} cannot be had here: {fetched.stderr.splitlines()[-1]}")
    names = [f"{name} {width}" for name in ("forward", "query_gradient") for width in (64, 128)]
    names += ["key_gradient 64", "slot_gradient 64", "delta 64", "embedding forward"]
    names += ["embedding sum_gradient", "embedding piece", "embedding join"]
    done = compile_all(
        repository, "--kernels", *names, TRITON_CACHE_DIR=str(tmp_path), PYTHONPATH=str(folder)
    )
    assert done.returncode == 0, done.stderr
    assert f"triton {version}" in done.stdout


def test_the_page_has_a_line_for_every_kernel(repository):
    from kernels.aot.__main__ import BEGIN, END
    from kernels.aot.catalog import all_kernels

    page = (repository / "docs" / "kernels.md").read_text(encoding="utf-8")
    table = page.partition(BEGIN)[2].partition(END)[0]
    names = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|")]
    assert names[2:] == list(all_kernels())  # below the heads and the rule
