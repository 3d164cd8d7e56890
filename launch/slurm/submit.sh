#!/usr/bin/env bash
# sbatch, for a template that is filled in; else an error that names what is missing.
#
#   launch/slurm/submit.sh [OPTIONS OF SBATCH] TEMPLATE.sbatch ARGS...
#
# A line of a template that ends in "# required: ..." must be on (#SBATCH), or its option given here, in its long or
# short form or as sbatch's variable (SBATCH_PARTITION, SBATCH_TIMELIMIT, ...). No line that is on may hold a <...>.
# A recipe or a sweep in ARGS is read too, so that a mistake does not wait in the queue. CHECK_ONLY=yes submits nothing.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" >/dev/null && pwd)
export PALIMPSEST_ROOT=${PALIMPSEST_ROOT:-${here%/launch/slurm}}

# shellcheck source=launch/common.bash
. "${here%/slurm}/common.bash"

declare -A short=([partition]=p [account]=A [qos]=q [constraint]=C [nodes]=N [ntasks]=n [time]=t [array]=a [cpus-per-task]=c)
declare -A variable=([partition]=SBATCH_PARTITION [account]=SBATCH_ACCOUNT [qos]=SBATCH_QOS [time]=SBATCH_TIMELIMIT
  [constraint]=SBATCH_CONSTRAINT [array]=SBATCH_ARRAY_INX)

is_given() { # OPTION: on the command line or in the environment
  local name=$1 letter=${short[$1]:-} given
  for given in "${options[@]}"; do
    [[ "$given" == "--$name" || "$given" == "--$name="* || (-n "$letter" && "$given" == "-$letter"*) ]] && return
  done
  if [[ -n "${variable[$name]:-}" && -n "${!variable[$name]:-}" ]]; then
    return
  fi
  [[ "$name" == ntasks-per-node ]] && is_given ntasks
}

folder_of_job() { # which relative paths in ARGS count from
  local given before='' folder=.
  for given in "${options[@]}"; do
    [[ "$given" != --chdir=* ]] || folder=${given#*=}
    [[ "$before" != --chdir && "$before" != -D ]] || folder=$given
    before=$given
  done
  echo "$folder"
}

options=()
while (($#)) && [[ "$1" != *.sbatch ]]; do
  options+=("$1")
  shift
done
if ! (($#)) || [[ ! -f "$1" ]]; then
  echo "usage: submit.sh [OPTIONS OF SBATCH] TEMPLATE.sbatch ARGS...   (templates: $here/*.sbatch)" >&2
  exit 2
fi

unset_lines=()
number=0
while IFS= read -r line; do
  number=$((number + 1))
  [[ "$line" =~ ^(##?)SBATCH\ --([a-z-]+)=([^[:space:]]*)\ *(#\ *(required:)?\ *(.*))?$ ]] || continue
  mark=${BASH_REMATCH[1]} name=${BASH_REMATCH[2]} value=${BASH_REMATCH[3]} required=${BASH_REMATCH[5]:-} why=${BASH_REMATCH[6]:-}
  if [[ "$mark" == '##' && -n "$required" ]] || [[ "$mark" == '#' && "$value" == *'<'* ]]; then
    is_given "$name" || unset_lines+=("$(printf 'line %-4s --%-18s %s' "$number" "$name" "$why")")
  fi
done <"$1"
if ((${#unset_lines[@]})); then
  echo "submit: $1 is not filled in, nothing was submitted:" >&2
  printf '  %s\n' "${unset_lines[@]}" >&2
  echo "Turn these lines on (#SBATCH, with a value), or give the options before the file's name." >&2
  exit 2
fi
template=$1
shift
question=()
if has_flag --config "$@"; then
  as_task_1=("${@//%A/1}")
  question=(progress "${as_task_1[@]//%a/1}")
elif [[ "${1:-}" == *.yaml || "${1:-}" == *.yml ]]; then
  question=(sweep "$@")
fi
if ((${#question[@]})); then
  PYTHON=$(interpreter "$PALIMPSEST_ROOT")
  (
    cd -- "$(folder_of_job)"
    PYTHONPATH=$PALIMPSEST_ROOT "$PYTHON" -P -m pretrain "${question[@]}" >/dev/null
  )
fi
[[ -z "${CHECK_ONLY:-}" ]] || exit 0
exec sbatch "${options[@]}" "$template" "$@"
