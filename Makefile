# `make demo` and `make test` are all the set-up there is; `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# A plain torch from PyPI brings gigabytes of CUDA. Where no other source of wheels is set up, its CPU wheels are used.
TORCH ?= torch==2.13.0
TORCH_INDEX ?= $(if $(PIP_FIND_LINKS)$(PIP_INDEX_URL)$(PIP_EXTRA_INDEX_URL),,--extra-index-url https://download.pytorch.org/whl/cpu)

.PHONY: help demo test lint format native readme reasons-page clean
help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

# A Python that has torch already lends it to the environment; else torch is installed first, by itself.
$(STAMP): pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' \
	|| { echo "stator needs Python 3.11 or 3.12; $(PYTHON) is $$($(PYTHON) -V). Try: make PYTHON=python3.12"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
	$$($(PYTHON) -c 'import importlib.util as u; print("--system-site-packages" if u.find_spec("torch") else "")')
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/pip install -q $(TORCH) $(TORCH_INDEX)
	$(BIN)/pip install -q -e '.[test,lint]'
	touch $@

native: $(STAMP)  ## rebuild the C core in place
	$(BIN)/python setup.py -q build_ext --inplace

demo: native  ## compile a small GPT for inference and for training, and show what it brings
	$(BIN)/python examples/demo.py

test: native  ## the test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

lint: $(STAMP)  ## style, types, import direction, line counts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet . || { $(BIN)/ruff format --check .; exit 1; }
	$(BIN)/mypy
	$(BIN)/python tools/check_imports.py
	$(BIN)/python tools/count_lines.py

format: $(STAMP)  ## apply ruff's formatting and its safe fixes
	$(BIN)/ruff check -q --fix . ; $(BIN)/ruff format -q .

readme: $(STAMP)  ## fill the table of README.md from benchmarks/results
	$(BIN)/python tools/readme_table.py

reasons-page: $(STAMP)  ## write docs/reasons.md from the table of reasons
	$(BIN)/python tools/reasons_page.py

clean:  ## remove what was built; .venv stays
	rm -rf build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src -name '*.so' -delete

include $(wildcard make/*.mk)
