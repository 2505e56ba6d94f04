# For a fresh machine: `make reproduce`, `make test`, and while working `make check` and `make docs`.
# Each creates .venv when it is missing; `make reproduce` installs only what it runs.
PYTHON ?= python3
BIN := .venv/bin
OUT ?= results/reproduce

.PHONY: reproduce test check lint fast docs clean
# one process per core, each on one thread
TESTS := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --dist worksteal

reproduce: .venv/lab
	$(BIN)/softnce study density --preset paper --out $(OUT)
	$(BIN)/softnce study information --preset paper --out $(OUT)
	$(BIN)/softnce study digits --preset paper --out $(OUT)
	$(BIN)/softnce report $(OUT)

test: .venv/installed lint
	$(TESTS)

check: .venv/installed
	$(MAKE) --no-print-directory -j2 --output-sync lint fast

fast: .venv/installed
	$(TESTS) -q -m "not slow"

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/installed
	$(BIN)/mkdocs build --strict --quiet --site-dir site

# Compiling every module of torch, SciPy and others takes longer than unpacking them: Python compiles what it imports.
.venv/lab: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e ".[lab]"
	touch $@

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[vision,text,graph,faiss,cluster,export,tune,docs,dev]"
	touch .venv/lab $@

clean:
	rm -rf .venv build dist site .mypy_cache .ruff_cache .pytest_cache
