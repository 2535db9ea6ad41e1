# Everything a contributor or a machine runs has a word here. Needs make and Python 3.11 or newer, nothing else.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.installed
SYSTEM := .venv/.system
# Where Debian keeps what a test server needs as root; some shells leave it out.
export PATH := $(PATH):/usr/sbin:/sbin
# Empty is unset: tests start hundreds of processes, and each would compile everything anew where nothing is kept.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help run first test check format bench bench-quick bench-costs bench-profiles bench-smoke crash clauses diagram clean

help: ## list these words
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Holdfast needs Python 3.11 or newer, and '$(PYTHON)' is not. Name another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv .venv \
		|| { rm -rf .venv; echo "No virtual environment could be made. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

$(READY): pyproject.toml | $(BIN)/python
	@echo "installing into .venv"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[postgres,server,dev]'
	@touch $@

$(SYSTEM): tools/system.py tests/http_oauth/provider/package-lock.json | $(READY)
	@$(BIN)/python -m tools.system
	@touch $@

run: $(READY) ## API, worker and a page at http://127.0.0.1:8787, until Ctrl-C
	@$(BIN)/holdfast dev $(ARGS)

first: $(READY) ## a first run, end to end, which ends by itself
	@$(BIN)/python examples/first_run.py

test: $(SYSTEM) ## all tests but the slow ones; ARGS="-k claim" narrows
	@$(BIN)/pytest -n 4 --dist loadgroup $(ARGS)

check: $(READY) ## lint, format, types, floors, sizes, clauses
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m tools.sizes
	@$(BIN)/python -m tools.clauses --check
	@$(BIN)/python -m tools.diagram --check

format: $(READY) ## repair what ruff can repair
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

bench: $(READY) ## measure against the field, into docs/benchmarks; 40 to 45 minutes on two cores
	@$(BIN)/python -m benchmarks --page docs/benchmarks $(ARGS)

bench-quick: $(READY) ## the same in a third of the time, printed: one slice each, and no million of finished runs
	@$(BIN)/python -m benchmarks --size quick $(ARGS)

bench-costs: $(READY) ## what a unit costs as things grow, into docs/benchmarks; about ten minutes
	@$(BIN)/python -m benchmarks.costs --page docs/benchmarks $(ARGS)

bench-profiles: $(READY) ## where our own processes spend their time, into docs/benchmarks; five minutes
	@$(BIN)/python -m benchmarks.profiles --page docs/benchmarks $(ARGS)

bench-smoke: $(READY) ## that the benchmarks work: tiny sizes, no network
	@$(BIN)/python -m benchmarks --size smoke --peers holdfast,raw $(ARGS)

crash: $(SYSTEM) ## the longer fault suites
	@$(BIN)/pytest -m slow $(ARGS)

clauses: $(READY) ## regenerate docs/clauses.md
	@$(BIN)/python -m tools.clauses --write

diagram: $(READY) ## regenerate docs/run-states.md
	@$(BIN)/python -m tools.diagram

clean: ## remove what the words above made
	@rm -rf .venv .bench tests/http_oauth/provider/node_modules .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage dist build
	@find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
