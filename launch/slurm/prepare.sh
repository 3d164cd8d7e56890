#!/usr/bin/env bash
# Submits the preparation of shards: an array of the tasks that still have something to prepare, and a merge that begins
# when all of them went well. Run again after a failure, it submits what is missing.
#
#   launch/slurm/prepare.sh [OPTIONS OF SBATCH] -- OPTIONS OF `python -m data_pipeline prepare`
#
#   PREPARE, MERGE   the templates, by default prepare.sbatch and merge.sbatch beside this file
#   TASKS            tasks among which the slices are dealt; by default one a slice, as many as the cluster takes
#   AT_ONCE          tasks that may run at once
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" >/dev/null && pwd)
root=${here%/launch/slurm}
# shellcheck source=launch/common.bash
. "$root/launch/common.bash"

options=()
while (($#)) && [[ "$1" != -- ]]; do
  options+=("$1")
  shift
done
if (($# < 2)); then
  echo "usage: prepare.sh [OPTIONS OF SBATCH] -- --input TEXT... --tokenizer TOKENIZER --output SHARDS ..." >&2
  exit 2
fi
shift

survey() { # NUM_TASKS: sets tasks, merged, missing, left
  local said
  said=$(data_pipeline "$root" slices --json ${1:+--of "$1"} "${arguments[@]}")
  # shellcheck disable=SC2016  # no variable, a program
  read -r tasks merged missing left < <("$PYTHON" -c 'import json, sys
d = json.loads(sys.argv[1])
print(d["tasks"], d["merged"], d["missing"], d["tasks_left"] or "-")' "$said")
}

arguments=("$@")
PYTHON=$(interpreter "$root")
export PYTHON
most=$(scontrol show config)
most=${most#*MaxArraySize}
most=${most#*= }
most=${most%%[[:space:]]*}
survey "${TASKS:-}"
if ((tasks > most)); then
  survey "$most"
fi
if [[ "$merged" == True ]]; then
  echo "prepare: the shards are there, made by the same request from the same files. Nothing to do." >&2
  exit 0
fi
after=()
if ((missing)); then
  job=$("$here/submit.sh" "${options[@]}" --parsable --array="$left${AT_ONCE:+%$AT_ONCE}" \
    "${PREPARE:-$here/prepare.sbatch}" --of "$tasks" "$@")
  echo "job ${job%%;*}: tasks $left of $tasks, for $missing slices that are missing"
  after=(--dependency="afterok:${job%%;*}" --kill-on-invalid-dep=yes)
fi
job=$("$here/submit.sh" "${options[@]}" --parsable "${after[@]}" "${MERGE:-$here/merge.sbatch}" "$@")
echo "job ${job%%;*}: the merge${after:+, when all of them went well}"
