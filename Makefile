# Each target sets up .venv by itself when it is missing; nothing is installed twice.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo test test-slow test-data check format mutation clean

install: .venv/.dev

.venv/.pip:
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@touch $@

.venv/.core: pyproject.toml | .venv/.pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

# All in one go: what the demo needs, too.
.venv/.dev: pyproject.toml | .venv/.pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch .venv/.core $@

demo: .venv/.core
	$(BIN)/robustmetric demo

# Two processes share two cores: a thread each.
test: .venv/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --cov --cov-report=term

test-slow: .venv/.dev
	$(BIN)/python -m pytest -m slow

test-data: .venv/.dev
	@test -n "$$ROBUSTMETRIC_DATA" || { echo "set ROBUSTMETRIC_DATA to the folder that holds the data"; exit 2; }
	$(BIN)/python -m pytest -m data

mutation: .venv/.dev
	$(BIN)/python tests/mutation.py

check: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv dist build .pytest_cache .mypy_cache .ruff_cache
