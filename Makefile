# Two commands do everything: `make train` and `make test`. Both install what they need into .venv/.
PYTHON ?= python3
SEED ?= 0
ARGS ?=
PIP := .venv/bin/pip --disable-pip-version-check install --quiet --constraint constraints.txt
PLUGINS := $(wildcard plugins/*/pyproject.toml)
export OMP_NUM_THREADS ?= 1

.PHONY: help train test lint bench clean

help:
	@echo "make train [SEED=0] [ARGS='key=value …']   install, then train the three MathChat agents on this machine"
	@echo "make test                                  install, then run every check and test"
	@echo "make bench                                 run the benchmarks; the last line of each is one JSON object"

.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Mappa needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 2; }
	$(PYTHON) -m venv .venv

# torch comes first and alone: with it in place nothing asks the registry for a build with CUDA.
.venv/.train: .venv/bin/pip pyproject.toml constraints.txt plugins/mappa_mathchat/pyproject.toml
	$(PIP) torch==2.13.0
	$(PIP) --editable '.[train]' --editable plugins/mappa_mathchat
	@touch $@

.venv/.test: .venv/.train requirements/test.txt $(PLUGINS)
	$(PIP) --editable '.[train,data]' $(foreach plugin,$(PLUGINS),--editable $(dir $(plugin))) --requirement requirements/test.txt
	@touch $@

train: .venv/.train
	.venv/bin/mappa train --plugin mathchat seed=$(SEED) $(ARGS)

test: .venv/.test lint
	.venv/bin/pytest --numprocesses=2 --dist=worksteal

lint: .venv/.test
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

# What the rollout benchmark is measured against has dependencies of its own.
.venv-bench/.installed: requirements/bench.txt | .venv/bin/pip
	.venv/bin/python -m venv .venv-bench
	.venv-bench/bin/pip --disable-pip-version-check install --quiet --requirement $<
	@touch $@

bench: .venv/.test .venv-bench/.installed
	for name in learner sampler rollout train credit overlap coach; do .venv/bin/python bench/$$name.py || exit 1; done

clean:
	rm -rf .venv .venv-bench .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
