# Every target does its own set-up; `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help setup demo test fuzz lint docs bench clean
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
BIN := .venv/bin
RUN := $(BIN)/python
PYTEST := $(RUN) -m pytest -q

SETUP := .venv/.installed
OPS := tfxc/ops/_tfxc_ops.so
OPS_SOURCES := custom_ops/build.py $(wildcard custom_ops/*/*.cc custom_ops/*/*.h)
BENCHMARKS := $(sort $(wildcard benchmarks/[a-z]*.py))
# The tests of what runs on the compiled ops: these run on the reference path as well.
REFERENCE_TESTS := tests/ops tests/samplers tests/optimizers
# What has nothing to do with Keras runs once.
KERAS_TESTS := $(filter-out %data %ops %/test_architecture.py %/test_install.py %/test_cuda_build.py,$(wildcard tests/[a-z]*s tests/test_*.py))

export TF_CPP_MIN_LOG_LEVEL ?= 2
export PIP_DISABLE_PIP_VERSION_CHECK = 1

help:  ## List the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(SETUP) $(OPS)  ## Create .venv, install tfxc in it (editable) and build the op library

demo: setup  ## Train, evaluate, export and query a next-item model; writes demo/
	$(RUN) examples/sequential_recommendation.py
	$(RUN) examples/query_saved_model.py demo/served

test: lint  ## Lint, then all tests: without the compiled ops, under tf-keras, under Keras 3
	TFXC_DISABLE_OPS=1 $(PYTEST) -n 2 $(REFERENCE_TESTS)
	TF_USE_LEGACY_KERAS=1 $(PYTEST) -n 2 $(KERAS_TESTS)
	$(PYTEST) -n 2 --doctest-modules tests tfxc

fuzz: setup  ## Random calls of every op and reader for an hour, or TFXC_FUZZ_SECONDS
	$(RUN) tests/fuzz/run_fuzz.py

lint: setup  ## Check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy tfxc

docs: setup  ## Build the user's guide and the reference; writes site/
	$(RUN) -m pip install --quiet --no-build-isolation -e ".[docs]"
	$(BIN)/mkdocs build --quiet --strict

bench: setup  ## Run every benchmark at its default size
	$(RUN) -m pip install --quiet -e ".[bench]" --no-build-isolation
	@set -e; for script in $(BENCHMARKS); do echo "== $$script"; $(RUN) "$$script"; done

clean:  ## Remove everything built or written, except .venv
	rm -rf build dist demo site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f $(OPS) tfxc/ops/_tfxc_ops.json
	find tfxc custom_ops tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +

# TensorFlow goes in first and build isolation is off, so that it is downloaded once
# and the ops are compiled against the very TensorFlow they will run in.
$(SETUP): pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
		f"tfxc needs Python 3.11 or newer, this is {sys.version.split()[0]}: make PYTHON=python3.11")'
	$(RUN) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv
	$(RUN) -m pip install --quiet "setuptools>=77" wheel "tensorflow==2.21.*"
	$(RUN) -m pip install --quiet --no-build-isolation -e ".[test,examples]"
	touch $@

$(OPS): $(OPS_SOURCES) | $(SETUP)
	$(RUN) setup.py --quiet build_ext --inplace
	@test ! -e $@ || touch $@
