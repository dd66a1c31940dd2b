# make demo | make test | make test-all | make lint | make format | make docs | make supply | make bench | make faults
# make fuzz | make load | make mutation
PYTHON ?= python3
BIN := .venv/bin
# Tests are single-threaded: one process a core.
JOBS ?= auto

.PHONY: setup demo test test-all lint format docs supply bench faults fuzz load mutation
.DELETE_ON_ERROR:

setup: .venv/.installed

# Installed once; again only when the dependencies change.
.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sla needs Python 3.11 or newer; say which: make PYTHON=python3.11 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing into .venv (once, a few minutes) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup
	@$(BIN)/sla demo

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

test: setup lint
	@$(BIN)/python -m pytest -q -m 'not slow' -n $(JOBS) --dist worksteal

test-all: setup lint
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

format: setup
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: setup
	@$(BIN)/python docs/generate.py

# After a change of versions: pins, sbom.json and what the package index knows of them.
supply: setup
	@$(BIN)/python docs/supply.py
	@test -z "$$SLA_INDEX" || $(BIN)/python docs/supply.py --audit
	@$(BIN)/python docs/generate.py

# On a machine with nothing else to do. `make bench BENCH=--quick` only shows that it runs.
bench: setup
	@for name in speed speed_profile speed_growth inference; do $(BIN)/python benchmarks/$$name.py $(BENCH) || exit 1; done
	@test -n "$(BENCH)" || $(BIN)/python benchmarks/label_loss.py

# Kills and other faults in runs of every task: about ten minutes of one core. `make faults FAULTS=--quick` is a part of it.
faults: setup
	@$(BIN)/python benchmarks/faults.py $(FAULTS)

# 100,000 damaged and hostile files for every reader: about 35 minutes on one core. FUZZ='--reader zip --inputs 5000' for a part.
fuzz: setup
	@$(BIN)/python benchmarks/fuzz.py $(FUZZ)

# Three hours, then folders of a million files and of 20,000 classes. `make load MINUTES=2 FILES=20000` is a try.
load: setup
	@$(BIN)/python benchmarks/load.py hour --minutes $(or $(MINUTES),60)
	@$(BIN)/python benchmarks/load.py folder --files $(or $(FILES),1000000) --classes 1000
	@$(BIN)/python benchmarks/load.py folder --files 60000 --classes 20000

# Small mistakes in the core that the tests must notice: about half an hour of one core. MUTATION='--module heads' for a part.
mutation: setup
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/mutation.py $(MUTATION)
