#!/usr/bin/env bash
#SBATCH --signal=B:USR1@120 --requeue --open-mode=append
''':' # bash: the no-op ':'.  Python: the start of a string that ends near the bottom.
# Pretrains Optimus. One file that is bash and Python, so that each of these starts the same training:
#
#   deepspeed launch/pretrain_optimus.sh                       the published model, launch/recipes/optimus_pretrain.yaml
#   deepspeed --num_gpus 2 launch/pretrain_optimus.sh --config launch/recipes/optimus_finetune.yaml --init-from RUN
#   deepspeed --no_python launch/pretrain_optimus.sh ...
#   bash launch/pretrain_optimus.sh ...                        flags of the launcher: DS_ARGS="--num_gpus 2"
#   torchrun --nproc-per-node 2 launch/pretrain_optimus.sh ... also with --no-python
#   sbatch -N 2 -n 16 launch/pretrain_optimus.sh ...           a job that is requeued until it is done; also srun, mpirun
#   bash launch/pretrain_optimus.sh --help                     every setting, at once
#
# Rules for this half: no three quotes in a row, a backslash only at the end of a line.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" >/dev/null && pwd)
if [[ ! -e "$here/common.bash" ]]; then # sbatch runs a copy of this file in its spool folder
  here=$(scontrol show job "$SLURM_JOB_ID") && here=${here#*Command=} && here=${here%%/pretrain_optimus.sh*}
fi
# shellcheck source=launch/common.bash
. "$here/common.bash"
launch "$here/pretrain_optimus.sh" train "$here/recipes/optimus_pretrain.yaml" "$@"
exit 70
# shellcheck disable=SC2317  # the rest is Python's
: <<'#END'
'''
import importlib.util
import os
import sys

if importlib.util.find_spec("deepspeed"):
    os.environ.setdefault("PYTHON", sys.executable)
os.execvp("bash", ["bash", os.path.abspath(__file__), *sys.argv[1:]])
#END
