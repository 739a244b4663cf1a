# make demo | make test | make prove | make check | make build | make lab
PYTHON ?= python3
BIN = .venv/bin
# for a CPU-only PyTorch (1 GB instead of several): make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=

.PHONY: demo test prove check build lab clean

demo: .venv/ready
	rm -rf demo
	$(BIN)/autograder demo demo

test: .venv/ready
	$(BIN)/python -m pytest -q -n 2

# fifty seeds in all: after a change of cases or mistakes
prove: .venv/ready
	$(BIN)/python -m pytest -q -n 2 -m proof

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/autograder build --check

build: .venv/ready
	$(BIN)/autograder build

lab: .venv/ready
	$(BIN)/autograder start my-course
	$(BIN)/jupyter lab my-course

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "This needs Python 3.11 or later; choose one with make PYTHON=python3.12 …"; exit 2; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	  { echo "Python's venv is missing. On Debian: apt install python3-venv"; exit 2; }
	$(PYTHON) -m venv .venv
	@if [ -n "$(TORCH_INDEX)" ]; then \
	  $(BIN)/pip install --quiet -c constraints.txt --index-url "$(TORCH_INDEX)" torch; fi
	@echo "installing, a minute or two …"
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev]"
	@touch $@

clean:
	rm -rf .venv demo graded .pytest_cache .ruff_cache .mypy_cache
