# make demo | demo-vae | test | test-slow | bench | bench-scale | lint | clean.  Each sets up .venv when it is missing or stale.
#   PYTHON=/path/to/python3.12   the interpreter .venv is made of (3.11 to 3.13)
#   TORCH_INDEX=URL              where the CPU build of torch comes from when there is no NVIDIA driver
#   TORCH_BUILD=cpu|default      that build, or pip's default, whatever this machine has (a login node: default)
#   CORPUS=sotu|wikipedia        the text of the demo
#   ARGS='-k name -x'            further arguments of pytest, of the demo or of the bench (--quick)
SHELL := /bin/bash
unexport PYTHON

PY := .venv/bin/python
SCRIPTS := .ci/run $(wildcard launch/*.sh launch/*.bash launch/*/*.sh launch/*/*.sbatch)
CORPUS ?= sotu
ARGS ?=

.PHONY: demo demo-vae test test-slow bench bench-scale lint setup clean

demo: setup
	$(PY) -m demo --corpus $(CORPUS) $(ARGS)

demo-vae: setup
	$(PY) -m demo vae --corpus $(CORPUS) $(ARGS)

test: setup
	$(PY) -m pytest $(ARGS)

test-slow: setup
	$(PY) -m pytest -m 'slow or gpu' $(ARGS)

bench: setup
	$(PY) -m bench $(ARGS)

bench-scale: setup
	$(PY) -m bench.scale $(ARGS)

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pyright
	$(PY) -c "import sys; from importlinter.cli import lint_imports_command as lint; sys.exit(lint())"
	set -e; for script in $(SCRIPTS); do bash -n "$$script"; done
	.venv/bin/shellcheck $(SCRIPTS)

setup:
	@PYTHON='$(PYTHON)' TORCH_INDEX='$(TORCH_INDEX)' TORCH_BUILD='$(TORCH_BUILD)' bash launch/setup.sh

clean:
	rm -rf .venv build *.egg-info .pytest_cache .hypothesis .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
