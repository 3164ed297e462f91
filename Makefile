# `make demo` and `make test` need Python 3.11 and nothing else: they make .venv, install into it, and run.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What the README's commands need, and what the tests, the documentation and DeepSpeed need besides.
RUNNABLE := $(VENV)/.runnable
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help install demo bench regenerate docs test test-all test-oldest test-newest faults fuzz golden mutants lint format clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(RUNNABLE): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV): some minutes, most of them for torch."
	$(PIP) -e ".[peft,sweeps,tracking]"
	touch $@

$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV), with what tests and documentation need: some minutes."
	$(PIP) -e ".[dev]"
	touch $@

install: $(INSTALLED)  ## make .venv and install the suite into it, with all that tests and documentation need

demo: $(or $(wildcard $(INSTALLED)),$(RUNNABLE))  ## fine-tune and score the bundled tiny T5 on the bundled benchmark (minutes, no network)
	$(BIN)/t5suite demo

lint: $(INSTALLED)  ## style, and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

test: lint  ## the tests that run before every commit
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder  # in conftest.py's order

test-all: lint  ## every test, the slow ones too: DeepSpeed, launchers, Slurm where it is installed
	T5SUITE_QUICK_SECONDS=30 $(BIN)/python -m pytest -n 2 --dist loadfile -m "slow or not slow" --timeout 1800 \
	    -o faulthandler_timeout=1700  # a dump of threads that run may end its process

# Both make an environment of their own in build/. TORCH=2.13.0: that torch instead; PROCESSES=1: a test at a time.
PROCESSES ?= 2
VERSIONS := $(BIN)/python -m tools.versions --processes $(PROCESSES) $(if $(TORCH),--torch $(TORCH))

test-oldest: | $(BIN)/python  ## the quick tests and four whole jobs with the oldest libraries that pyproject.toml allows
	$(PIP) packaging
	$(VERSIONS) oldest

test-newest: | $(BIN)/python  ## the same with the newest there are, whatever pyproject.toml allows
	$(PIP) packaging
	$(VERSIONS) newest

fuzz: $(INSTALLED)  ## 100,000 made inputs to parsers, readers, task files and manifests (minutes)
	T5SUITE_FUZZ_EXAMPLES=100000 $(BIN)/python -m pytest tests/test_fuzz.py --timeout 3000

BEFORE ?= origin/main
golden: $(INSTALLED)  ## twenty steps of every kind of run, bit for bit as at the commit BEFORE=... (minutes)
	rm -rf build/golden && git worktree prune && git worktree add --force --detach build/golden/code $(BEFORE)
	$(BIN)/python -m tools.golden record build/golden/before --root build/golden/code
	$(BIN)/python -m tools.golden record build/golden/after
	$(BIN)/python -m tools.golden compare build/golden/before build/golden/after

faults: $(INSTALLED)  ## inject 44 faults into real runs, two at once; a table, and faults.json
	$(BIN)/python -m faults

# MAP=quick or MAP=all: make the map of that commit first, which tests execute a line. EQUIVALENT="12 31": leave them out.
N ?= 60
mutants: $(INSTALLED)  ## N faults drawn over the code by SEED, and which tests catch them: a table, build/mutants/report.json
	$(if $(MAP),$(BIN)/python -m tools.mutants map $(if $(filter all,$(MAP)),--slow))
	$(BIN)/python -m tools.mutants run --count $(N) --seed $(SEED) --equivalent $(EQUIVALENT)

bench: $(INSTALLED)  ## whole jobs against what people use today: a table, and build/bench.json (an hour)
	$(BIN)/python -m benchmarks

regenerate: $(INSTALLED)  ## write all generated files: the table of flags, pages of docs/, the bundled benchmark
	$(BIN)/python -m t5suite.training.flags.table
	$(BIN)/python -m docs.builders
	$(BIN)/python -m tools.mini_benchmark.grammar --write
	$(BIN)/python -m tools.mini_benchmark.vocabulary --write

docs: $(INSTALLED)  ## build the documentation into build/site; warnings are errors
	$(BIN)/python -m docs.builders
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

format: $(INSTALLED)  ## rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove what the other targets made
	rm -rf $(VENV) runs build *.egg-info .pytest_cache .ruff_cache .import_linter_cache
