# shellcheck shell=bash
# A training under SLURM: what a task of srun is, and what the batch script does around it.
#
# The batch script starts itself again with srun, one task for each rank, and waits. SLURM signals it SRUN_SIGNAL
# before the time limit (--signal=B:USR1@120 in the head of each script): the ranks save and leave with 85, and the
# job goes back into the queue under its number. On its return it goes on from the newest checkpoint.
#
#   SRUN_ARGS     more flags of srun, such as "--container-image=/images/torch.sqsh --cpu-bind=none"
#
# Of USR1 and TERM only the first may reach srun: at TERM it kills its tasks.

saved=85 # exit code of a run that saved itself and wants to be started again

is_slurm_task() { # the shells that salloc and srun --pty give have step numbers from 4294967290 on
  [[ -n "${SLURM_STEP_ID:-}" ]] && ((SLURM_STEP_ID < 4294967290))
}

rank_of_slurm() { # what the trainer reads, from what srun sets; DeepSpeed itself reads none of that
  trap '' USR1 # until the trainer listens; the batch script asks again and again
  export RANK=$SLURM_PROCID WORLD_SIZE=${SLURM_STEP_NUM_TASKS:-$SLURM_NTASKS} LOCAL_RANK=$SLURM_LOCALID
  export LOCAL_WORLD_SIZE=${SLURM_STEP_TASKS_PER_NODE:-1}
  LOCAL_WORLD_SIZE=${LOCAL_WORLD_SIZE%%[(,]*}
  if [[ -n "${SLURM_CPUS_PER_TASK:-}" ]]; then
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$SLURM_CPUS_PER_TASK}
  fi
  if [[ "${CUDA_VISIBLE_DEVICES:-}" =~ ^[^,]+$ ]]; then # --gpus-per-task shows a task its own GPU alone, as number 0
    LOCAL_RANK=0
  fi
  if [[ "${RENDEZVOUS_OF:-}" != "$SLURM_JOB_ID" ]]; then # srun without our batch script
    MASTER_ADDR=$(address_of_first_node "${SLURM_STEP_NODELIST:-$SLURM_JOB_NODELIST}")
    MASTER_PORT=$(port_of_step "$SLURM_STEP_ID")
    export MASTER_ADDR MASTER_PORT
  fi
}

address_of_first_node() { # NODELIST: rank 0 runs on its first node, whose name need not resolve everywhere
  local node said
  read -r node < <(scontrol show hostnames "$1")
  said=$(scontrol show node "$node")
  said=${said#*NodeAddr=}
  echo "${said%%[[:space:]]*}"
}

port_of_step() { # 16 for each job: no two jobs of 1,250 in a row, array tasks included, share one
  echo $((10000 + SLURM_JOB_ID % 1250 * 16 + $1 % 16))
}

free_port_from() { # the first one that nobody on this machine listens at
  "$PYTHON" -c '
import socket, sys
first = int(sys.argv[1])
for port in (*range(first, 30000), *range(10000, first)):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            continue
    print(port)
    break
else:
    sys.exit("no free port")' "$1"
}

batch() { # SCRIPT ARGS...: never returns
  local script=$1 folder step last rc=0
  shift
  progress "$@"
  if ((${SLURM_RESTART_COUNT:-0} > 0)); then
    say "job $(job_name) is started again (restart $SLURM_RESTART_COUNT), step $step of $last is saved in $folder"
    if ((step >= last)); then
      exit 0
    fi
    set -- "$@" --resume auto
  fi
  srun_ranks "$script" "$@" || rc=$?
  progress "$@"
  case $rc in
    0 | 2) exit "$rc" ;; # done, or the user's mistake
    "$saved") say "the ranks saved step $step of $last" ;;
  esac
  [[ "$rc" == "$saved" ]] || exit "$rc"
  requeue "$rc"
}

progress() { # ARGS...: sets folder, step, last of the run that they name
  local said
  said=$("$PYTHON" -P -m pretrain progress "$@") || exit
  IFS=$'\t' read -r step last folder <<<"$said"
}

srun_ranks() { # SCRIPT ARGS...: gives the exit code of the ranks; a signal to this shell asks them to save
  local pid asker='' rc=0 again=0 first
  first=$(address_of_first_node "$SLURM_JOB_NODELIST")
  MASTER_PORT=$(free_port_from "$(port_of_step 0)")
  export MASTER_ADDR=$first MASTER_PORT RENDEZVOUS_OF=$SLURM_JOB_ID
  local flags=(--input=none --kill-on-bad-exit=0 --wait=60)
  if [[ -n "${SLURM_CPUS_PER_TASK:-}" ]]; then # sbatch has it, and srun no longer takes it from there
    flags+=("--cpus-per-task=$SLURM_CPUS_PER_TASK")
  fi
  local more=()
  read -r -a more <<<"${SRUN_ARGS:-}"
  srun "${flags[@]}" "${more[@]}" "$@" &
  pid=$!
  trap : USR1 TERM INT
  while rc=0 && { wait "$pid" || rc=$?; } && kill -0 "$pid" 2>/dev/null; do
    if [[ -z "$asker" ]]; then # again and again, since a rank that has just begun does not listen yet
      say "asked to stop: the ranks save"
      while kill -USR1 "$pid" 2>/dev/null; do sleep 10; done &
      asker=$!
    fi
  done
  wait "$pid" || again=$?
  ((again == 127)) || rc=$again # 127: `wait` has told the exit code already
  [[ -z "$asker" ]] || kill "$asker"
  return "$rc"
}

requeue() { # EXIT_CODE: back into the queue, where SLURM lets us; never returns
  local name
  name=$(job_name)
  if scontrol requeue "$name"; then
    say "job $name goes back into the queue"
    sleep 300 & # SLURM ends this script
    wait
  fi
  say "SLURM does not requeue job $name. Submit it again, with --resume auto"
  exit "$1"
}

job_name() { # array tasks are requeued singly
  if [[ -n "${SLURM_ARRAY_JOB_ID:-}" ]]; then
    echo "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
  else
    echo "$SLURM_JOB_ID"
  fi
}

say() { echo "launch: $*" >&2; }
