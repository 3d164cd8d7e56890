#!/usr/bin/env bash
# Makes .venv, or brings it up to date: pinned dependencies (constraints.txt), the project itself editable.
# Says nothing when there is nothing to do. The variables it reads are explained in the Makefile.
set -euo pipefail
export PYTHONSAFEPATH=1 # a module of the folder is not what Python or pip asks for
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
venv=$root/.venv
log=$venv/setup.log
index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}

say() { printf 'setup: %s\n' "$*" >&2; }
refuse() {
  say "$*"
  exit 2
}

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }
supported() { [[ "$1" == 3.11 || "$1" == 3.12 || "$1" == 3.13 ]]; }

find_python() { # the interpreter asked for, or the first of the usual names that will do
  local candidate version seen=""
  if [[ -n "${PYTHON:-}" ]]; then
    version=$(version_of "$PYTHON") || refuse "PYTHON=$PYTHON does not run. Name a Python 3.11 to 3.13."
    supported "$version" || refuse "Python 3.11 to 3.13 is needed, PYTHON=$PYTHON is $version."
    printf '%s\n' "$PYTHON"
    return
  fi
  for candidate in python3 python3.13 python3.12 python3.11 python; do
    version=$(version_of "$candidate") || continue
    if supported "$version"; then
      printf '%s\n' "$candidate"
      return
    fi
    seen="$seen $candidate=$version"
  done
  refuse "Python 3.11 to 3.13 is needed, found${seen:- none}. Install one, or name it: make PYTHON=/path/to/python3.12 ..."
}

run() { # a person watches pip at work; elsewhere its output is kept, and shown only when it fails
  if [[ -t 1 ]]; then
    "$@"
  elif ! "$@" >>"$log" 2>&1; then
    tail -n 30 "$log" >&2
    return 1
  fi
}

pip() { run "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }

has_driver() { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }

install_cpu_torch() { # one bounded try: an index that is out of reach must not cost minutes
  local pin
  pin=$(grep -E '^torch==' constraints.txt | cut -d' ' -f1)
  if ! "$venv/bin/python" -m pip --disable-pip-version-check install --no-deps --retries 0 --timeout 15 \
    --index-url "$index" "$pin" >>"$log" 2>&1; then
    say "no CPU build of $pin at $index (see .venv/setup.log): pip's default build is taken, which may be large."
  fi
}

install_where_there_is_a_wheel() { # NAME CONSEQUENCE: one bounded try, since the rest works without it
  local pin
  pin=$(grep -E "^$1==" constraints.txt | cut -d' ' -f1)
  if ! "$venv/bin/python" -m pip --disable-pip-version-check install --no-deps --only-binary :all: \
    --retries 0 --timeout 15 "$pin" >>"$log" 2>&1; then
    say "no wheel of $pin (see .venv/setup.log): $2"
  fi
}

mend_script_headers() { # some scripts of sdists name the interpreter in a #! line that cannot hold a space
  "$venv/bin/python" - "$venv/bin" <<'END'
import sys
from pathlib import Path

for script in Path(sys.argv[1]).iterdir():
    if script.is_symlink() or not script.is_file() or not (text := script.read_bytes()).startswith(b"#!/"):
        continue
    header, _, body = text.partition(b"\n")
    interpreter = header[2:].strip()
    if b"python" in interpreter and (b" " in interpreter or len(header) > 127):
        exec_line = b"'''exec' \"" + interpreter + b'" "$0" "$@"'
        script.write_bytes(b"#!/bin/sh\n" + exec_line + b"\n' '''\n" + body)
END
}

wanted_files=$(cat pyproject.toml constraints.txt launch/setup.sh | cksum)
{ read -r done_files && read -r done_build && read -r done_root; } 2>/dev/null <"$venv/setup.stamp" ||
  { done_files='' done_build='' done_root=''; }
build=${TORCH_BUILD:-${done_build:-$(has_driver && echo default || echo cpu)}}
[[ "$build" == cpu || "$build" == default ]] || refuse "TORCH_BUILD must be cpu or default, got $build."
if [[ "$build" == cpu && -z "${TORCH_BUILD:-}" ]] && has_driver; then
  say "this machine has an NVIDIA driver, .venv the CPU build of torch: make setup TORCH_BUILD=default replaces it."
fi

same_python() { [[ -z "${PYTHON:-}" || "$(version_of "$PYTHON")" == "$(version_of "$venv/bin/python")" ]]; }
if [[ "$done_files|$done_build|$done_root" == "$wanted_files|$build|$root" ]] && same_python; then
  exit 0
fi

python=$(find_python)
if [[ -e "$venv" ]]; then
  made_of=$("$venv/bin/python" -c 'import pip, sys; print("%d.%d" % sys.version_info[:2], sys.prefix)' 2>/dev/null || true)
  if [[ "$made_of" != "$(version_of "$python") $venv" ||
    "${done_build:-$build} ${done_root:-$root}" != "$build $root" ]]; then
    [[ -f "$venv/pyvenv.cfg" || -z "$(ls -A "$venv")" ]] || refuse "$venv is no virtual environment. Move it away."
    say "the .venv here is another Python's, another place's or holds another build of torch: making it anew."
    rm -rf "$venv"
  fi
fi
if [[ ! -x "$venv/bin/python" ]]; then
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    refuse "$python has no venv module. On Debian: apt-get install python3-venv"
  "$python" -m venv "$venv"
fi
rm -f "$venv/setup.stamp"
: >"$log"

extras='test'
say "installing the pinned dependencies into .venv with $(version_of "$python"), $build build of torch (a few minutes the first time)"
case $build in
  cpu)
    install_cpu_torch
    install_where_there_is_a_wheel triton 'the tests of the Triton kernels will be skipped.' # 690 MB unpacked
    ;;
  default) extras='test,kernels' ;;
esac
pip install --constraint constraints.txt --editable ".[$extras]" ||
  refuse "pip could not install the dependencies; its last lines are above, all of them in .venv/setup.log."
install_where_there_is_a_wheel mpi4py 'prepare cannot run under mpirun.'
mend_script_headers
printf '%s\n' "$wanted_files" "$build" "$root" >"$venv/setup.stamp"
say "done: .venv holds $("$venv/bin/python" -m pip list 2>/dev/null | wc -l) packages."
