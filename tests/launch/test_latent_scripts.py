"""launch/pretrain_{optimus,adavae,glm_vae}.sh are pretrain_glm.sh with another recipe.

What that script promises is tested on it; here, that there is nothing else in the others.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pretrain.settings.cli import parse_train

RECIPES = {
    "pretrain_glm": "glm_base",
    "pretrain_optimus": "optimus_pretrain",
    "pretrain_adavae": "adavae",
    "pretrain_glm_vae": "glm_vae",
}


def form(script: Path) -> str:
    """The script without its name, its recipe and the comments of its bash half."""
    name, recipe = script.stem, RECIPES[script.stem]
    text = script.read_text().replace(f"{recipe}.yaml", "RECIPE").replace(f"{name}.sh", "SCRIPT")
    kept = r"#!|#SBATCH|#END|# shellcheck"
    return "\n".join(
        line for line in text.split("\n") if not line.startswith("#") or re.match(kept, line)
    )


@pytest.mark.parametrize("name", RECIPES)
def test_the_scripts_differ_in_recipe_name_and_comments_alone(name: str, repository: Path) -> None:
    first, script = (repository / "launch" / f"{n}.sh" for n in ("pretrain_glm", name))
    assert form(script) == form(first)
    assert form(script).count("RECIPE") == 1 and "SCRIPT" in form(script)
    assert "\n#SBATCH --signal=B:USR1@120 --requeue --open-mode=append\n" in form(script)
    assert script.stat().st_mode & 0o777 == first.stat().st_mode & 0o777
    usage = [line for line in script.read_text().split("\n") if line.startswith("#   ")]
    assert len(usage) >= 6 and all(f"{name}.sh" in line for line in usage)


def test_every_script_is_looked_at(repository: Path) -> None:
    assert {path.stem for path in repository.glob("launch/pretrain_*.sh")} == set(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_a_rank_of_the_script_trains_its_recipe(
    name: str, repository: Path, tmp_path: Path
) -> None:
    pretend = tmp_path / "python"
    pretend.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"if '-c' in sys.argv: os.execv({sys.executable!r}, ['python', *sys.argv[1:]])\n"
        "print(json.dumps(sys.argv[1:]))\n"
    )
    pretend.chmod(0o755)
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "PYTHON": str(pretend)}
    done = subprocess.run(
        ["bash", str(repository / "launch" / f"{name}.sh"), "--steps", "3"],
        env={**os.environ, **ranks}, cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    recipe = str(repository / "launch/recipes" / f"{RECIPES[name]}.yaml")
    called = json.loads(done.stdout)
    assert called[-5:] == ["train", "--config", recipe, "--steps", "3"]
    config, _ = parse_train(called[-4:])
    assert config.name == RECIPES[name] and config.steps == 3
