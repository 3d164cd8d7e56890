"""How far the run has come that arguments of `train` name: what a batch script asks before and
after its ranks.

    $ python -m pretrain progress --config launch/recipes/debug.yaml
    10	20	runs/debug

are the step of the newest complete checkpoint (0 where there is none), the last step, and the run
folder, separated by tabs.
"""

from collections.abc import Sequence
from pathlib import Path

from pretrain import checkpoint_files
from pretrain.cli import parse_train
from pretrain.run_folder import RunFolder


def main(argv: Sequence[str]) -> str:
    """`python -m pretrain progress ARGS-OF-TRAIN`: the line to print."""
    config, _ = parse_train(argv)
    folder = RunFolder(Path(config.runs) / config.name)
    newest = checkpoint_files.newest(folder.checkpoints)
    step = checkpoint_files.read_manifest(newest).update if newest else 0
    last = config.stop_at_step or config.steps
    return f"{step}\t{last}\t{folder.path}"
