"""How far the run has come that arguments of `train` name: what a batch script asks before and
after its ranks.

    $ python -m pretrain progress --config launch/recipes/debug.yaml
    10	20	SIGUSR1	runs/debug

are the step of the newest complete checkpoint (0 where there is none), the last step, why the run
ended or "-", and the run folder, separated by tabs.
"""

from collections.abc import Sequence
from pathlib import Path

from pretrain.checkpoints import checkpoint_files
from pretrain.recording import status
from pretrain.recording.run_folder import RunFolder
from pretrain.settings.cli import parse_train


def main(argv: Sequence[str]) -> str:
    """`python -m pretrain progress ARGS-OF-TRAIN`: the line to print.

    Raises ValueError where there are checkpoints and all are damaged.
    """
    config, _ = parse_train(argv)
    folder = RunFolder(Path(config.runs) / config.name)
    newest = checkpoint_files.find(folder.checkpoints, "auto")
    step = checkpoint_files.read_manifest(newest).update if newest else 0
    return f"{step}\t{config.stop_at_step or config.steps}\t{_reason(folder.path)}\t{folder.path}"


def _reason(run_folder: Path) -> str:
    if not (run_folder / status.STATUS_FILE).is_file():
        return "-"
    return " ".join((status.read(run_folder).reason or "-").split())
