# make setup | demo | test | lint | docs | clean
# Everything is installed into .venv and nothing else is touched. `make setup PYTHON=/path/to/python3.12` skips the search.

SHELL := /bin/sh
PYTHON ?=
BIN := .venv/bin
STAMP := .venv/.installed
KEY = $$({ echo "$(CURDIR)"; cat pyproject.toml constraints.txt; } | cksum)

.PHONY: setup setup-dev demo test lint docs clean

# `make setup` installs the package, `make test` also what its tests need ($(STAMP)-dev): a first demo does not wait for that.
# Python compiles a module when it is first imported: compiling all of them now would take a fourth of the installation.
# A stamp holds a checksum of what was installed, and is written last: an interrupted setup starts again, a finished one is instant.
define install
	@if [ "$$(cat $(STAMP)-dev 2>/dev/null)" = "$(KEY)" ] || [ "$$(cat $(STAMP)$(2) 2>/dev/null)" = "$(KEY)" ]; then exit 0; fi; \
	set -e; \
	if [ -x $(BIN)/python ] && ! $(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))'; then \
	    echo ".venv holds another Python than 3.12: remove it ('make clean') and run the same again." >&2; exit 1; fi; \
	if [ ! -x $(BIN)/python ] || ! $(BIN)/python -c 'import pip' 2>/dev/null; then \
	    python=$$(sh scripts/find_python.sh $(PYTHON)); \
	    echo "Creating .venv with $$python"; "$$python" -m venv .venv; fi; \
	echo "Installing into .venv (a few minutes, about 8 GB)"; \
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile -e ".$(1)" -c constraints.txt; \
	echo "$(KEY)" > $(STAMP)$(2)
endef

setup:
	$(call install,,)

setup-dev:
	$(call install,[dev],-dev)

demo: setup
	@$(BIN)/lerobot-coda evolve recipes/quickstart.yaml --output runs/quickstart

# Two test processes with one thread each: more threads than cores makes both slower.
test: setup-dev
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 NUMEXPR_NUM_THREADS=1 LP_NUM_THREADS=0 \
	    $(BIN)/python -m pytest -n 2 --dist loadscope

lint: setup-dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

docs: setup-dev
	@$(BIN)/mkdocs build --strict

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
