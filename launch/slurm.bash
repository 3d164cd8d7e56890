# shellcheck shell=bash
# A training under SLURM: what a task of srun is, and what the batch script does around the ranks.
#
# The batch script starts itself again with srun, one task for each rank, and waits. SLURM signals it before the time
# limit (--signal=B:USR1@120 in the head of each script): the ranks save and leave with 85, and the job goes back into
# the queue under its number, as after a crash. On its return it goes on from the newest checkpoint. A run that has
# crashed MAX_CRASHES times without a new one stays out; a start whose ranks did not find each other (75) counts as one.
#
# In an array, %A and %a in ARGS stand for its number and the task's, so that each task has a run of its own: --name
# glm_%A_%a --seed %a. Tasks that all name one run are a chain, one after another (--array=1-20%1): each goes on where
# the last one saved, and once the run is done the others end at once with 0. A mistake of the user's (2) in one of them
# cancels those that wait.
#
#   SRUN_ARGS     more flags of srun, such as "--container-image=/images/torch.sqsh --cpu-bind=none"
#   MAX_CRASHES   3

saved=85  # exit code of a run that saved itself and wants to be started again
mistake=2 # the user's: starting again would end the same
not_met=75 # the ranks did not find each other
asked='' # whether the batch script was asked to stop, by USR1 or Ctrl-C
ended='' # whether SLURM ends the job, by TERM
srun_pid=''
asker=''
chain='' # whether this job is one of several that train the same run
crashes=0

note_chain() { # ARGS...: sets chain
  if [[ -n "${SLURM_ARRAY_JOB_ID:-}" && ! "$*" =~ --(sweep|(name|runs)[= ][^ ]*%a) ]]; then
    chain=yes
  fi
}

is_slurm_task() { # a shell that salloc gives on a node has a step number from 4294967290 on
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
  if ! command -v scontrol >/dev/null; then # a container; srun was called on the first node, as a rule
    echo "${SLURM_LAUNCH_NODE_IPADDR:?neither scontrol nor SLURM_LAUNCH_NODE_IPADDR says where rank 0 is}"
    return
  fi
  read -r node < <(scontrol show hostnames "$1")
  said=$(scontrol show node "$node")
  [[ "$said" == *NodeAddr=* ]] || return 1
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
  local script=$1 resume='' step last reason folder rc=0
  shift
  check_allocation
  trap 'asked=yes; ask' USR1 INT
  trap 'ended=yes; ask' TERM
  fill_in_numbers "$@"
  progress
  [[ -z "$chain" ]] || check_chain
  if ((${SLURM_RESTART_COUNT:-0} > 0)); then
    say "job $(job_name) is started again (restart $SLURM_RESTART_COUNT)"
    resume=yes
  fi
  [[ -z "$resume$chain" ]] || wait_for_folder
  if [[ -n "$resume$chain" ]] || has_flag --sweep "$@"; then
    if ((step >= last)); then
      say "$folder: step $step of $last is saved, nothing left to do"
      exit 0
    elif ((step > 0)); then
      go_on_from_newest
    fi
  fi
  srun_ranks "$script" "${arguments[@]}" || rc=$?
  after_ranks "$rc"
}

check_allocation() { # leaves where ranks could not be started, or GPUs would stay idle
  local tasks=${SLURM_NTASKS_PER_NODE:-${SLURM_TASKS_PER_NODE:-1}} gpus=${SLURM_GPUS_ON_NODE:-0}
  if ! command -v srun >/dev/null || ! command -v scontrol >/dev/null; then
    say "a job of SLURM without srun or scontrol in its PATH: call this script outside of the container." \
      "SRUN_ARGS gives srun the container."
    leave_with_mistake
  fi
  tasks=${tasks%%[(,]*}
  if ((gpus > tasks)) && [[ "${SRUN_ARGS:-}" != *ntasks* ]]; then
    say "this job has $gpus GPUs on a node and $tasks tasks: a task is a rank and uses one GPU. --ntasks-per-node=$gpus"
    leave_with_mistake
  fi
}

after_ranks() { # EXIT_CODE: never returns
  local rc=$1 before=$step how
  ((rc != 0)) || exit 0
  ((rc != mistake)) || leave_with_mistake
  if [[ -n "$ended" ]]; then # scancel, the time limit, or preemption after which SLURM requeues by itself
    say "SLURM has ended this job; the ranks left with $rc"
    exit "$rc"
  fi
  progress
  if [[ "$rc" == "$saved" ]]; then
    say "$folder: stopped by $reason, step $step of $last is saved"
    [[ "$reason" != "the file STOP" ]] || give_up "$rc" "a run that was stopped so is not started again"
  else
    ((step > before)) || note_crash
    how="the ranks ended with $rc"
    ((rc != not_met)) || how="the ranks did not find each other"
    say "$folder: $how, step $step of $last is saved, crashes without a new checkpoint: $crashes"
    ((crashes < ${MAX_CRASHES:-3})) || give_up "$rc" "crashed $crashes times at step $step (MAX_CRASHES)"
  fi
  [[ -z "$chain" ]] || next_of_chain "$rc"
  requeue "$rc"
}

fill_in_numbers() { # ARGS...: sets arguments, %A and %a filled in
  arguments=("$@")
  if [[ -n "${SLURM_ARRAY_JOB_ID:-}" ]]; then
    arguments=("${arguments[@]//%A/$SLURM_ARRAY_JOB_ID}")
    arguments=("${arguments[@]//%a/$SLURM_ARRAY_TASK_ID}")
  fi
}

progress() { # sets step, last, reason and folder of the run that arguments name
  local said rc=0
  said=$("$PYTHON" -m pretrain progress "${arguments[@]}") || rc=$?
  ((rc != mistake)) || leave_with_mistake
  ((rc == 0)) || exit "$rc"
  IFS=$'\t' read -r step last reason folder <<<"$said"
}

check_chain() { # leaves where tasks of one run would not wait for each other
  local said
  said=$(scontrol show job "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID")
  if [[ "$said" == *ArrayTaskThrottle=1[[:space:]]* ]]; then
    return
  fi
  if ((SLURM_ARRAY_TASK_COUNT > 1)); then
    say "all $SLURM_ARRAY_TASK_COUNT tasks of this array would train $folder. One after another: --array=...%1." \
      "Each its own: %a in --name, or a --sweep."
    leave_with_mistake
  fi
  chain=''
}

wait_for_folder() { # until the ranks of a node that SLURM has lost have noticed it: as long as timeout_s is by default
  local lock=$folder/.lock rc=0
  if [[ ! -e "$lock" ]] || ! command -v flock >/dev/null; then
    return
  fi
  flock --nonblock "$lock" true || rc=$?
  ((rc == 1)) || return 0 # free, or there are no locks here, which the ranks will say
  say "$folder is still being written by $(<"$lock"), before this start: waiting for it, half an hour at most"
  flock --wait 1800 "$lock" true || say "$folder is still being written"
}

go_on_from_newest() { # in arguments, instead of the way in which the run began
  local kept=() skip='' argument
  for argument in "${arguments[@]}"; do
    if [[ -n "$skip" ]]; then
      skip=''
    elif [[ "$argument" == --resume || "$argument" == --init-from ]]; then
      skip=yes
    elif [[ "$argument" != --resume=* && "$argument" != --init-from=* ]]; then
      kept+=("$argument")
    fi
  done
  arguments=("${kept[@]}" --resume auto)
}

note_crash() { # sets crashes, of this job (of all tasks of a chain) since step
  local of=${chain:+$SLURM_ARRAY_JOB_ID} job at count
  of=${of:-$(job_name)}
  mkdir -p "$folder"
  if ! read -r job at count 2>/dev/null <"$folder/crashes.txt" || [[ "$job $at" != "$of $step" ]]; then
    count=0
  fi
  crashes=$((count + 1))
  echo "$of $step $crashes" >"$folder/crashes.txt"
}

next_of_chain() { # EXIT_CODE: leave the rest to the next task; never returns
  if ((SLURM_ARRAY_TASK_ID < SLURM_ARRAY_TASK_MAX)); then
    say "the next task of the chain goes on"
    [[ "$1" != "$saved" ]] || exit 0
  else
    say "this was the last task of the chain. Submit it again to go on"
  fi
  exit "$1"
}

give_up() { # EXIT_CODE WHY: never returns
  say "$folder: $2"
  [[ -z "$chain" ]] || cancel_rest
  exit "$1"
}

leave_with_mistake() { # never returns; every other task of a chain would end the same
  if [[ -n "$chain" ]] && ((SLURM_ARRAY_TASK_ID < SLURM_ARRAY_TASK_MAX)); then
    say "exit code $mistake is a mistake of yours, which every task of the chain would meet. Mend it and submit the chain again"
    cancel_rest
  fi
  exit "$mistake"
}

cancel_rest() { # of the chain
  say "the tasks of array $SLURM_ARRAY_JOB_ID that wait are cancelled"
  scancel --state=PENDING "$SLURM_ARRAY_JOB_ID" || say "they are not: scancel $SLURM_ARRAY_JOB_ID"
}

srun_ranks() { # SCRIPT ARGS...: gives the exit code of the ranks; a signal to this shell asks them to save
  local rc=0 again=0 more=() flags=(--input=none --kill-on-bad-exit=0 --wait=60)
  if ! MASTER_ADDR=$(address_of_first_node "$SLURM_JOB_NODELIST") || ! MASTER_PORT=$(free_port_from "$(port_of_step 0)"); then
    say "SLURM does not tell the address of the first node, or no port is free there: no rank is started"
    return "$not_met"
  fi
  export MASTER_ADDR MASTER_PORT RENDEZVOUS_OF=$SLURM_JOB_ID
  if [[ -n "${SLURM_CPUS_PER_TASK:-}" ]]; then # sbatch has it, and srun no longer takes it from there
    flags+=("--cpus-per-task=$SLURM_CPUS_PER_TASK")
  fi
  read -r -a more <<<"${SRUN_ARGS:-}"
  srun "${flags[@]}" "${more[@]}" "$@" &
  srun_pid=$!
  [[ -z "$asked$ended" ]] || ask
  while rc=0 && { wait "$srun_pid" || rc=$?; } && kill -0 "$srun_pid" 2>/dev/null; do
    : # a signal ended the wait
  done
  wait "$srun_pid" || again=$?
  ((again == 127)) || rc=$again # 127: `wait` has told the exit code already
  [[ -z "$asker" ]] || kill "$asker"
  return "$rc"
}

ask() { # the ranks, through srun: again and again, since a rank that has just begun does not listen yet
  if [[ -n "$srun_pid" && -z "$asker" ]]; then
    say "the ranks are asked to save and stop"
    (
      trap 'kill $!; exit' TERM # the sleep does not outlive it
      while kill -USR1 "$srun_pid" 2>/dev/null; do
        sleep 10 &
        wait $!
      done
    ) &
    asker=$!
  fi
}

requeue() { # EXIT_CODE: back into the queue, where SLURM lets us; never returns
  local name
  name=$(job_name)
  trap - USR1 TERM INT
  if scontrol requeue "$name"; then
    say "job $name goes back into the queue"
    sleep 300 # SLURM ends this script
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

data_pipeline() { # ROOT ARGS...: a task without ranks
  export PYTHONPATH=$1${PYTHONPATH:+:$PYTHONPATH}
  PYTHON=$(interpreter "$1")
  exec "$PYTHON" -m data_pipeline "${@:2}"
}

say() { echo "launch: $*" >&2; }
