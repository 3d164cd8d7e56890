# shellcheck shell=bash
# What the scripts of this folder share: who are we started by, and which interpreter trains.
#
#   launch SCRIPT VERB RECIPE ARGS...
#
# becomes one rank of `python -m pretrain VERB` where a launcher says which: deepspeed and torchrun by RANK and
# WORLD_SIZE, mpirun and srun in words of their own. As a batch script of SLURM it starts SCRIPT again with srun
# (slurm.bash), and where nobody has started it, under the deepspeed launcher. RECIPE is used when ARGS name no
# --config. A relative path in ARGS counts from the folder of the caller: nothing here changes the folder.
#
#   PYTHON    the interpreter; by default python3, or .venv/bin/python of this repository where python3 has no deepspeed
#   DS_ARGS   flags of the deepspeed launcher for the bare form, such as "--num_gpus 2"

# No program that Python starts from here on, the launchers' own included, takes a module from the folder that somebody
# works in: a json.py beside the data is a file of theirs.
export PYTHONSAFEPATH=1

here_of_common=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" >/dev/null && pwd)
# shellcheck source=launch/slurm.bash
. "$here_of_common/slurm.bash"
# shellcheck source=launch/openmpi.bash
. "$here_of_common/openmpi.bash"
# shellcheck source=launch/hosts.bash
. "$here_of_common/hosts.bash"

launch() {
  local script=$1 verb=$2 recipe=$3
  shift 3
  local root
  root=$(cd -- "$(dirname -- "$script")/.." >/dev/null && pwd)
  export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
  note_chain "$@"
  PYTHON=$(interpreter "$root") || leave_with_mistake
  export PYTHON # to the ranks, which may not have our PATH

  if has_flag --help "$@" || has_flag -h "$@"; then
    worker "$verb" "$@"
  fi
  has_flag --config "$@" || has_flag --sweep "$@" || set -- --config "$recipe" "$@" # a sweep names its recipe
  if has_flag --print_config "$@"; then # needs no launcher either
    worker "$verb" "$@"
  fi
  case $(started_by) in
    launcher) ;;
    openmpi) rank_of_openmpi ;;
    srun) rank_of_slurm ;;
    sbatch) batch "$script" "$@" ;;
    nobody) bare "$script" "$@" ;;
  esac
  take_over
  export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(threads_per_rank)}
  worker "$verb" "$@"
}

started_by() { # the innermost launcher: srun may start torchrun, sbatch may start mpirun
  if [[ -n "${RANK:-}" && -n "${WORLD_SIZE:-}" ]]; then # deepspeed or torchrun
    echo launcher
  elif [[ -n "${OMPI_COMM_WORLD_RANK:-}" ]]; then # mpirun
    echo openmpi
  elif is_slurm_task; then
    echo srun
  elif [[ -n "${SLURM_JOB_ID:-}" ]]; then # a batch script, or a shell of salloc
    echo sbatch
  else
    echo nobody
  fi
}

worker() { # this process becomes the rank, so that signals of the launcher reach it
  exec "$PYTHON" -u -m pretrain "$@"
}

bare() {
  local script=$1
  shift
  local flags=()
  read -r -a flags <<<"${DS_ARGS:-}"
  if [[ " ${DS_ARGS:-} " != *" --master_port"* ]]; then
    flags+=("--master_port=$(free_port)")
  fi
  if [[ -f /job/hostfile && " ${DS_ARGS:-} " != *hostfile* ]]; then
    echo "launch: /job/hostfile exists, so deepspeed starts on the hosts it lists; DS_ARGS='--hostfile /dev/null' stays here." >&2
  fi
  hand_over
  exec "$PYTHON" -m deepspeed.launcher.runner "${flags[@]}" "$script" "$@"
}

interpreter() {
  local root=$1
  if [[ -n "${PYTHON:-}" ]]; then
    printf '%s\n' "$PYTHON"
  elif has_deepspeed python3; then
    printf 'python3\n'
  elif [[ -x "$root/.venv/bin/python" ]]; then
    printf '%s\n' "$root/.venv/bin/python"
  else
    echo "launch: python3 has no deepspeed, and there is no .venv here. Run: make -C '$root' setup" >&2
    return 2
  fi
}

has_deepspeed() { # -P: no Python before 3.11, which would have to be told so
  "$1" -P -c 'import importlib.util as u, sys; sys.exit(u.find_spec("deepspeed") is None)' 2>/dev/null
}

free_port() {
  "$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

threads_per_rank() {
  local ranks=${LOCAL_WORLD_SIZE:-${LOCAL_SIZE:-1}} cores
  cores=$("$PYTHON" -c 'import os; print(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())')
  echo $((cores > ranks ? cores / ranks : 1))
}

has_flag() { # FLAG ARGS...: is FLAG, or FLAG=..., among ARGS
  local flag=$1 argument
  shift
  for argument in "$@"; do
    [[ "$argument" == "$flag" || "$argument" == "$flag="* ]] && return 0
  done
  return 1
}
