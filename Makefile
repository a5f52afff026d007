# Every target sets up what it needs: a virtual environment in .venv, the extras, and for the tests of the report in a
# browser the distribution's Chromium and the axe-core package of npm, which audits a page. `make test` needs python3
# (3.11 or newer, with its venv module), git and make, and no other user than yours. PYTHON=python3.13 and JAX=0.10.2
# choose versions; alone, JAX is the newest that this Python takes. The environment is made anew when they differ from
# the last time.
PYTHON ?= python3
JAX ?=
VENV := .venv
WITH = $$($(PYTHON) --version), jax $(or $(JAX),newest)
BIN := $(VENV)/bin
FRAMEWORKS := $(VENV)/frameworks
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 12))
FRAMEWORKS_PYTHON ?= $(shell for each in python3.12 python3.13 python3.14 $(PYTHON); do \
  $$each -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$each && break; done)
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
QUICK := -n auto --maxprocesses 4 --dist worksteal
PARALLEL := -n 3 --dist worksteal  # on two cores: some tests wait for processes, or for a limit to pass
# Frameworks where a Python that MaxText takes is here.
PART ?= browser compilers docs exactness faults hosts training ray full $(if $(FRAMEWORKS_PYTHON),frameworks)
NEEDED = $(if $(filter browser,$(PART)),$(VENV)/browser $(VENV)/axe) $(if $(filter frameworks,$(PART)),$(FRAMEWORKS)/made) \
  $(if $(filter ray,$(PART)),$(VENV)/ray)
ORACLE_SEED ?= $(shell date +%s)#  of the draws against definitions of attention
empty :=
SELECTED = ($(subst $(empty) , or ,$(strip $(PART)))) $(if $(filter full,$(PART)),,and not full)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help bench setup test test-slow test-all coverage check-gpu faults check-frameworks lint docs example-runs snapshots fuzz wheel sdist clean

help:                 ## this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

FORCE:

bench: $(VENV)/run    ## the main job: bench 256k tokens on this machine, and its report
	$(BIN)/stripectl bench --seqlen 256k

setup: $(VENV)/dev    ## the environment of contributors, in .venv, without tests

test: $(VENV)/dev     ## the quick tests, in about 5 minutes on two cores
	$(BIN)/python -m pytest $(QUICK)

test-slow: $(VENV)/dev $(NEEDED)    ## the others, or PART="browser compilers" of them
	ORACLE_SEED=$(ORACLE_SEED) $(BIN)/python -m pytest $(PARALLEL) -m "$(SELECTED)"

test-all: $(VENV)/dev $(VENV)/browser $(VENV)/axe $(VENV)/ray $(if $(FRAMEWORKS_PYTHON),$(FRAMEWORKS)/made)    ## all tests
	ORACLE_SEED=$(ORACLE_SEED) $(BIN)/python -m pytest $(PARALLEL) -m "$(if $(FRAMEWORKS_PYTHON),,not frameworks)"

snapshots: $(VENV)/dev   ## write the texts of help, tables and cards again; git diff shows how they changed
	$(BIN)/python -m pytest --force-regen -q tests/snapshots || true

coverage: $(VENV)/dev    ## the quick tests, with the branches of each module that they leave out
	$(BIN)/python -m pytest $(QUICK) --cov --cov-report=term
	@for folder in core simulate analysis runner; do \
	  echo "$$folder: $$($(BIN)/coverage report --include="stripectl/$$folder/*" --format=total) %"; done

check-gpu:    ## what this machine's NVIDIA GPU says of stripectl, in at most 8 minutes (WHEELS=FOLDER, PARTS="step_profile")
	$(PYTHON) -m benchmarks.check_gpu $(PARTS) $(WHEELS:%=--wheels %)

faults: $(VENV)/ray   ## the times after faults of hosts, in docs/how-to/many-hosts.md
	$(BIN)/python -m tests.support.fault_times

check-frameworks: $(VENV)/dev $(FRAMEWORKS)/made    ## snippets against published frameworks, and models against transformers
	$(BIN)/python -m pytest -m frameworks tests/export/test_frameworks.py tests/training/test_transformers.py

lint: $(VENV)/dev    ## ruff, pyright and the check of prose
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python tools/prose.py

docs: $(VENV)/dev    ## the documentation, in docs/_build/html
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --builder html docs docs/_build/html

example-runs: $(VENV)/dev    ## the runs in examples/runs in the newest schema
	$(BIN)/python tools/example_runs.py

fuzz: $(VENV)/dev    ## a coverage-guided fuzzer: KIND=plans, options, yaml, runs, journals or profiles, MINUTES=12
	$(PIP) --group fuzz
	$(BIN)/python -m tests.support.fuzz $(or $(KIND),runs) --minutes $(or $(MINUTES),12)

wheel: $(VENV)/dev    ## the wheel, in dist/
	rm -rf dist && $(BIN)/python -m build --wheel --outdir dist . >/dev/null

sdist: $(VENV)/dev    ## the source distribution, in dist/
	$(BIN)/python -m build --sdist --outdir dist . >/dev/null

clean:    ## remove what the targets above made
	rm -rf $(VENV) dist docs/_build

$(VENV)/with: FORCE
	@if [ "$$(cat $@ 2>/dev/null)" != "$(WITH)" ]; then set -e; \
	  $(PYTHON) -c 'import ensurepip' 2>/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update && \
	    apt-get install -y python3-venv; } || { echo "$(PYTHON) has no venv module. Try apt-get install python3-venv"; \
	    exit 1; }; \
	  $(PYTHON) -m venv --clear $(VENV); $(PIP) 'pip>=25.1'; \
	  echo "$(WITH)" >$@; fi

$(VENV)/run: pyproject.toml $(VENV)/with
	$(PIP) -e . $(JAX:%=jax==%)
	touch $@

$(VENV)/dev: pyproject.toml $(VENV)/with
	$(PIP) -e '.[tpu,cuda-compiler]' --group dev $(JAX:%=jax==%)
	touch $@ $(VENV)/run

$(VENV)/ray: $(VENV)/dev
	$(PIP) -e '.[ray]'
	touch $@

$(FRAMEWORKS)/made: Makefile
	@[ -n "$(FRAMEWORKS_PYTHON)" ] || { echo "MaxText needs Python 3.12 or newer: set FRAMEWORKS_PYTHON"; exit 1; }
	$(FRAMEWORKS_PYTHON) -m venv --clear $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --no-deps maxtext==0.2.5
	$(FRAMEWORKS)/bin/python -m pip install --quiet pydantic omegaconf pyyaml jinja2 flax packaging pathwaysutils jax \
	  transformers==5.24.0 torch
	$(FRAMEWORKS)/bin/python -m pip download --quiet --no-deps --dest $(FRAMEWORKS)/wheels \
	  transformer-engine==2.20.2 megatron-core==0.19.2 torchtitan==0.3.0
	touch $@

$(VENV)/browser: | $(VENV)/with
	{ command -v chromium && command -v chromedriver; } >/dev/null || \
	  { $(SUDO) apt-get update -q && $(SUDO) apt-get install -q -y chromium chromium-driver; }
	touch $@

$(VENV)/axe: | $(VENV)/with
	command -v npm >/dev/null || { $(SUDO) apt-get update -q && $(SUDO) apt-get install -q -y --no-install-recommends npm; }
	npm install --silent --no-audit --no-fund --prefix $@ axe-core@4 || \
	  echo "axe-core cannot be installed; the audit of accessibility is skipped"
