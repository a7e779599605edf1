# Everything runs in .venv, which `make setup` makes from nothing but Python 3.11+.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
TEXTWORLD := $(VENV)/.textworld

.PHONY: help setup run test test-fast check format samples bench clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## make .venv and install agentguard with its development tools

$(STAMP): pyproject.toml
	@echo "setting up $(VENV) (Python 3.11 or newer) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; name it with: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
	@echo "ready: $(BIN)/agentguard"

$(TEXTWORLD): $(STAMP)
	@echo "installing TextWorld, for the tests that record the sample runs again ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[textworld]'
	@touch $@

run: setup ## diagnose the sample runs of this repository
	@$(BIN)/agentguard diagnose samples/13-pepper-and-potato.json
	@echo "All sample runs (one whole: $(BIN)/agentguard diagnose FILE):"
	@$(BIN)/agentguard diagnose samples

test: setup check $(TEXTWORLD) ## check the code and run all tests
	$(BIN)/python -m pytest

test-fast: setup ## run the tests that take no more than a few seconds each
	$(BIN)/python -m pytest -m 'not slow'

check: setup ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

samples: setup $(TEXTWORLD) ## record the sample runs again
	$(BIN)/python examples/record_samples.py --out samples

bench: setup ## run the benchmarks that need no data
	$(BIN)/python benchmarks/rules.py
	$(BIN)/python benchmarks/diagnose.py
	$(BIN)/python benchmarks/import_time.py
	$(BIN)/python benchmarks/samples.py

clean: ## remove .venv and caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
