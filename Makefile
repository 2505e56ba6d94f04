# For a fresh machine: `make reproduce`, `make test`, and while working `make check` and `make docs`.
# Each creates .venv when it is missing; `make reproduce` installs only what it runs.
PYTHON ?= python3
BIN := .venv/bin
OUT ?= results/reproduce

.PHONY: reproduce test check lint fast docs clean
# one process per core, each on one thread
TESTS := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --dist worksteal

reproduce: .venv/experiments
	$(BIN)/python -m experiments run density information digits --preset paper --out $(OUT)
	$(BIN)/python -m experiments report $(OUT)

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
	$(BIN)/mkdocs build --strict --site-dir site

# Compiling every module of torch, SciPy and others takes longer than unpacking them: Python compiles what it imports.
.venv/experiments: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e ".[experiments]"
	touch $@

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[vision,text,graph,faiss,cluster,sklearn,docs,dev]"
	touch .venv/experiments $@

clean:
	rm -rf .venv build dist site .mypy_cache .ruff_cache .pytest_cache
