# Each target sets up what it needs in .venv; requirements.txt and pyproject.toml decide when again.
# The same steps without make are in README.md.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& echo $$p && break; done)
BIN := .venv/bin
STAMP := .venv/.installed
PEERS := .venv/.peers
# Files in the order in which they are collected: tests/conftest.py puts the longest first.
# Three workers on two cores: some tests wait for a browser or a kernel. BLAS with a thread for
# every core in each of them would spend its time waiting for its turn.
THREE := -n 3 --dist loadfile --no-loadscope-reorder
ALONE := OPENBLAS_NUM_THREADS=1
NBVAL := --nbval --nbval-current-env --nbval-cell-timeout=60
LESSONS := notebooks/00_start_here.ipynb $(wildcard notebooks/lessons/*.ipynb)

.PHONY: help setup report test test-long lab bench lint clean

# JupyterLab refuses to run as root: said before the minute of installing, not after it. Once there
# is an environment, mpcore lab says it at once.
ifneq ($(filter lab,$(MAKECMDGOALS)),)
ifeq ($(shell id -u 2>/dev/null)$(wildcard $(STAMP))$(findstring allow-root,$(ARGS)),0)
$(error JupyterLab does not run as root; in a container: make lab ARGS=--allow-root)
endif
endif

help:  ## what there is
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

$(STAMP): requirements.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: Python 3.11, 3.12 or 3.13 is needed" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -r requirements.txt
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --editable .
	@touch $@

setup: $(STAMP)  ## only install, into .venv

report: $(STAMP)  ## investigate the case int8_outliers and write reports/int8_outliers
	$(BIN)/mpcore report int8_outliers

test: $(STAMP)  ## tests, a few minutes; fetches the model (93 MB) and a browser if there is none
	$(BIN)/mpcore fetch smollm2-135m
	$(BIN)/python tests/browser.py
	$(ALONE) $(BIN)/python -m pytest $(THREE) -m "not full" $(NBVAL) $(LESSONS) tests

test-long: $(STAMP)  ## every test at full size
	$(BIN)/mpcore fetch smollm2-135m
	$(BIN)/python tests/browser.py
	$(ALONE) $(BIN)/python -m pytest $(THREE) $(NBVAL) $(LESSONS) tests

lab: $(STAMP)  ## the workbook in JupyterLab, from its start page; ARGS="…" are JupyterLab's options
	$(BIN)/mpcore lab $(ARGS)

# Without a package index the peers are left out, and asked for again the next time.
$(PEERS): $(STAMP)
	@if $(BIN)/python bench/peers.py; then touch $@; fi

bench: $(STAMP) $(PEERS)  ## speed, beside other packages; ARGS=--quick: arithmetic alone, one minute
	@set -e; for name in rounding matmul $(if $(ARGS),,forward widgets); do \
	echo; echo "bench/$$name.py"; $(BIN)/python bench/$$name.py $(ARGS); done

lint: $(STAMP)  ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:  ## caches; reports, models and .venv stay
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find mpcore tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
