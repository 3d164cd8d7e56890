"""Which room may import which, and which file alone may import a heavy library.

Between rooms: import-linter, with the contracts of pyproject.toml. Libraries: the rules below, read
off the syntax tree. Every rule has a case that must fail.
"""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = ("preparing", "storage", "tokenizing", "reading", "packing", "transforms")
LAYERS = (
    *("comparing", "sweeps", "planning", "training", "evaluate", "latent", "filling"),
    *(
        "handing_over",
        "objectives",
        "checkpoints",
        "distributed",
        "recording",
        "settings",
        "models",
    ),
)
ROOMS = ("pretrain", "kernels", "data_pipeline", "demo", "bench")
# library -> where it may be imported: files, or whole folders with a "/" at the end.
ALLOWED = {
    "torch": ("pretrain/", "kernels/", "data_pipeline/packing/loader.py", "demo/", "bench/"),
    "deepspeed": ("pretrain/distributed/engine.py",),
    "transformers": ("data_pipeline/tokenizing/transformers_folder.py", "bench/"),
    "tensorboard": ("pretrain/training/metrics.py",),
    "torch.utils.tensorboard": ("pretrain/training/metrics.py",),
    "mwparserfromhell": ("demo/",),
    "mpi4py": ("data_pipeline/preparing/rank_messages.py",),
}
# library -> files that may import it only inside a function, so importing it stays quick.
ONLY_INSIDE_FUNCTIONS = {"transformers": "data_pipeline/", "datasets": "data_pipeline/"}


def imports(tree: ast.AST, inside: bool = False) -> list[tuple[str, bool]]:
    """Every imported module with whether the import stands inside a function."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, inside) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append((node.module, inside))
            found += [(f"{node.module}.{alias.name}", inside) for alias in node.names]
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        found += imports(node, inside or is_function)
    return found


def is_of(module: str, library: str) -> bool:
    return module == library or module.startswith(f"{library}.")


def violations(root: Path) -> list[str]:
    """What breaks a rule under `root`, as "file imports library"."""
    found = set()
    for path in sorted(p for room in ROOMS for p in (root / room).rglob("*.py")):
        file = path.relative_to(root).as_posix()
        for module, inside in imports(ast.parse(path.read_text(encoding="utf-8"))):
            for library, places in ALLOWED.items():
                allowed = any(file == p or (p.endswith("/") and file.startswith(p)) for p in places)
                if is_of(module, library) and not allowed:
                    found.add(f"{file} imports {library}")
            for library, folder in ONLY_INSIDE_FUNCTIONS.items():
                if is_of(module, library) and file.startswith(folder) and not inside:
                    found.add(f"{file} imports {library} outside a function")
    return sorted(found)


def test_libraries_stay_in_their_files(repository: Path) -> None:
    assert violations(repository) == []


@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        ("data_pipeline/packing/pack.py", "import torch", "imports torch"),
        ("data_pipeline/packing/pack.py", "def f():\n    from torch import nn", "imports torch"),
        ("pretrain/training/train.py", "import deepspeed.comm", "imports deepspeed"),
        (
            "pretrain/models/backbone.py",
            "from transformers import BertModel",
            "imports transformers",
        ),
        (
            "data_pipeline/tokenizing/transformers_folder.py",
            "import transformers",
            "imports transformers outside a function",
        ),
        (
            "data_pipeline/reading/documents.py",
            "import datasets",
            "imports datasets outside a function",
        ),
        (
            "pretrain/training/train.py",
            "from torch.utils import tensorboard",
            "imports torch.utils.tensorboard",
        ),
        ("pretrain/training/train.py", "import tensorboard", "imports tensorboard"),
        ("pretrain/distributed/world.py", "from mpi4py import MPI", "imports mpi4py"),
    ],
)
def test_a_library_elsewhere_is_found(tmp_path: Path, file: str, line: str, said: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(line + "\n")
    assert violations(tmp_path) == [f"{file} {said}"]


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    command = (
        "import sys; from importlinter.cli import lint_imports_command as lint; sys.exit(lint())"
    )
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(
        [sys.executable, "-c", command, "--no-cache"],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_rooms_import_only_along_the_arrows(repository: Path) -> None:
    done = lint_imports(repository)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def toy_house(tmp_path: Path, repository: Path) -> Path:
    """The rooms with empty files, and the repository's contracts."""
    shutil.copy(repository / "pyproject.toml", tmp_path)
    paths = [tmp_path / "pretrain" / name / "part.py" for name in LAYERS]
    paths += [tmp_path / room / "part.py" for room in ROOMS]
    paths += [tmp_path / "data_pipeline" / name / "part.py" for name in PACKAGES]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for folder in {p.parent for p in paths}:
        (folder / "__init__.py").touch()
    return tmp_path


def test_the_toy_house_keeps_the_contracts(toy_house: Path) -> None:
    done = lint_imports(toy_house)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("kernels/part.py", "import pretrain.settings.part"),
        ("data_pipeline/part.py", "import kernels.part"),
        ("kernels/part.py", "import data_pipeline.part"),
        ("data_pipeline/storage/part.py", "import data_pipeline.preparing.part"),
        ("data_pipeline/reading/part.py", "import data_pipeline.storage.part"),
        ("data_pipeline/packing/part.py", "import data_pipeline.storage.part"),
        ("pretrain/training/part.py", "import demo.part"),
        ("pretrain/training/part.py", "import bench.part"),
        ("pretrain/models/part.py", "import pretrain.objectives.part"),
        ("pretrain/models/part.py", "import pretrain.settings.part"),
        ("pretrain/objectives/part.py", "import pretrain.distributed.part"),
        ("pretrain/objectives/part.py", "import pretrain.checkpoints.part"),
        ("pretrain/checkpoints/part.py", "import pretrain.training.part"),
        ("pretrain/settings/part.py", "import pretrain.recording.part"),
        ("pretrain/planning/part.py", "import pretrain.sweeps.part"),
    ],
)
def test_an_import_against_the_arrows_is_found(toy_house: Path, file: str, line: str) -> None:
    (toy_house / file).write_text(line + "\n")
    assert lint_imports(toy_house).returncode == 1
