# For a fresh machine: `make reproduce`, `make test`, and `make check` while working. Each creates .venv when it is missing.
PYTHON ?= python3
BIN := .venv/bin
OUT ?= results/reproduce

.PHONY: reproduce test check lint clean

reproduce: .venv/installed
	$(BIN)/softnce study density --preset paper --out $(OUT)
	$(BIN)/softnce study information --preset paper --out $(OUT)
	$(BIN)/softnce study digits --preset paper --out $(OUT)
	$(BIN)/softnce report $(OUT)

test: .venv/installed lint
	$(BIN)/python -m pytest

check: .venv/installed lint
	$(BIN)/python -m pytest -q -m "not slow"

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[vision,text,graph,faiss,dev]"
	touch $@

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache
