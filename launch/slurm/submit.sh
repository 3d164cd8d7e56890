#!/usr/bin/env bash
# sbatch, for a template that is filled in; else an error that names what is missing.
#
#   launch/slurm/submit.sh [OPTIONS OF SBATCH] TEMPLATE.sbatch ARGS...
#
# A line of a template that ends in "# required: ..." must be on (#SBATCH), or its option given in another line or here,
# in any form that sbatch takes, or as its variable (SBATCH_PARTITION, SBATCH_TIMELIMIT, ...). No line that is on may
# hold a <...>.
# A recipe or a sweep in ARGS is read too, so that a mistake does not wait in the queue. CHECK_ONLY=yes submits nothing.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" >/dev/null && pwd)
export PALIMPSEST_ROOT=${PALIMPSEST_ROOT:-${here%/launch/slurm}}

# shellcheck source=launch/common.bash
. "${here%/slurm}/common.bash"

# shellcheck source=launch/sbatch.bash
. "${here%/slurm}/sbatch.bash"

is_given() { # OPTION: on the command line, in the environment, or on a line of the template that is on
  local name=$1 variable
  case $name in
    time) variable=SBATCH_TIMELIMIT ;;
    array) variable=SBATCH_ARRAY_INX ;;
    *) variable=SBATCH_${name//-/_} && variable=${variable^^} ;;
  esac
  [[ -v asked[$name] || -n "${!variable:-}" || -v on_line[$name] ]] && return
  [[ "$name" == ntasks-per-node ]] && is_given ntasks
}

declare -A asked=() on_line=()
read_options asked "$@"
options=("${@:1:num_read}")
shift "$num_read"
if ! (($#)) || [[ ! -f "$1" ]]; then
  echo "usage: submit.sh [OPTIONS OF SBATCH] TEMPLATE.sbatch ARGS...   (templates: $here/*.sbatch)" >&2
  exit 2
fi
while IFS= read -r line && [[ -z "$line" || "$line" == '#'* ]]; do
  if [[ "$line" == '#SBATCH '* && "$line" != *'<'* ]]; then
    read -r -a words <<<"${line%% \#*}"
    read_options on_line "${words[@]:1}"
  fi
done <"$1"

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
    cd -- "${asked[chdir]:-${on_line[chdir]:-.}}" # which relative paths in ARGS count from
    PYTHONPATH=$PALIMPSEST_ROOT "$PYTHON" -m pretrain "${question[@]}" >/dev/null
  )
fi
[[ -z "${CHECK_ONLY:-}" ]] || exit 0
exec sbatch "${options[@]}" "$template" "$@"
