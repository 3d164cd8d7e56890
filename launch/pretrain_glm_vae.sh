#!/usr/bin/env bash
#SBATCH --signal=B:USR1@120 --requeue --open-mode=append
''':' # bash: the no-op ':'.  Python: the start of a string that ends near the bottom.
# Pretrains GLM-VAE. One file that is bash and Python, so that each of these starts the same training:
#
#   deepspeed launch/pretrain_glm_vae.sh                       GLM and its latent space, launch/recipes/glm_vae.yaml
#   deepspeed --num_gpus 2 launch/pretrain_glm_vae.sh --config launch/recipes/glm_vae.yaml --optimizer.lr 1e-3
#   deepspeed --no_python launch/pretrain_glm_vae.sh ...
#   bash launch/pretrain_glm_vae.sh ...                        flags of the launcher: DS_ARGS="--num_gpus 2"
#   torchrun --nproc-per-node 2 launch/pretrain_glm_vae.sh ... also with --no-python
#   sbatch -N 2 -n 16 launch/pretrain_glm_vae.sh ...           a job that is requeued until it is done; also srun, mpirun
#   bash launch/pretrain_glm_vae.sh --help                     every setting, at once
#
# Rules for this half: no three quotes in a row, a backslash only at the end of a line.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" >/dev/null && pwd)
if [[ ! -e "$here/common.bash" ]]; then # sbatch runs a copy of this file in its spool folder
  here=$(scontrol show job "$SLURM_JOB_ID") && here=${here#*Command=} && here=${here%%/pretrain_glm_vae.sh*}
fi
# shellcheck source=launch/common.bash
. "$here/common.bash"
launch "$here/pretrain_glm_vae.sh" train "$here/recipes/glm_vae.yaml" "$@"
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
