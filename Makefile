# `make demo` and `make test` are all the set-up there is; `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help demo test lint native clean
help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

$(STAMP): pyproject.toml setup.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/pip install -q torch==2.13.0
	$(BIN)/pip install -q -e ".[test,lint]"
	touch $@

native: $(STAMP)  ## rebuild the C core in place
	$(BIN)/python setup.py -q build_ext --inplace

test: native  ## the test suite
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

lint: $(STAMP)  ## style, types, import direction
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
