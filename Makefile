# Every target does its own set-up; `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: wheels pages help setup setup-tests demo test test-long test-avx2 test-arm64 sanitize fuzz mutants lint docs bench clean
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
BIN := .venv/bin
RUN := $(BIN)/python
PYTEST := $(RUN) -m pytest -q

SETUP := .venv/.installed
TEST_SETUP := .venv/.tests
OPS := tfxc/ops/_tfxc_ops.so
OPS_SOURCES := custom_ops/build.py $(wildcard custom_ops/*/*.cc custom_ops/*/*.h)
# The same for processors without AVX-512, and one that watches its memory and whatever C++ leaves undefined.
AVX2_OPS := build/custom_ops/x86-64-v3/_tfxc_ops.so
# Without AVX-512 the usual library runs those kernels anyway.
AVX2_OPS_WANTED := $(if $(shell grep -m 1 avx512vl /proc/cpuinfo),$(AVX2_OPS))
SANITIZED_OPS := build/custom_ops/$(if $(filter x86_64,$(shell uname -m)),x86-64-v4,armv8-a)-sanitized/_tfxc_ops.so
BENCHMARKS := $(filter-out %/write_pages.py,$(sort $(wildcard benchmarks/[a-z]*.py)))
# The tests of the compiled kernels; how long a kernel takes is not asked under a sanitizer.
KERNEL_TESTS := -m kernels tests/ops
# Nor in an emulator.
ARM64_TESTS := -m "kernels and not timing" tests/ops
SANITIZED_TESTS := -m "kernels and (long or not timing)" tests/ops tests/fuzz
# Python and TensorFlow come without a sanitizer: it is loaded before them, and what they leak is theirs.
SANITIZER = LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1

export TF_CPP_MIN_LOG_LEVEL ?= 2
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# The workers of all three runs read each test module, which pytest takes long to rewrite.
export PYTHONDONTWRITEBYTECODE =
# A warning of the compiler is an error here; a user's `pip install` only compiles.
export TFXC_WERROR = 1

help:  ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(SETUP) $(OPS)  ## Create .venv, install tfxc (editable) and what the examples need, build the ops

setup-tests: setup $(TEST_SETUP) $(AVX2_OPS_WANTED)  ## The same, and what tests, lint and docs need

demo: setup  ## Train, evaluate, export and query a next-item model; writes demo/
	$(RUN) examples/sequential_recommendation.py
	$(RUN) examples/query_saved_model.py demo/served the old man looked at the

test: setup-tests  ## The tests and lint, in seven minutes: kernels with AVX2 at most, what depends on Keras, the rest
ifneq ($(AVX2_OPS_WANTED),)
	@echo "make test, 1 of 3: the kernels for processors without AVX-512 (under a minute)"
	@$(MAKE) test-avx2
endif
	@echo "make test, 2 of 3: what depends on Keras, under tf-keras (a minute)"
	@# oneDNN's pass over each graph takes longer than it saves in graphs so small; what a served model computes is
	@# asked of a process that has it.
	@TF_ENABLE_ONEDNN_OPTS=0 TF_USE_LEGACY_KERAS=1 $(PYTEST) -n 2 -m both_keras --doctest-modules tests tfxc/_keras
	@echo "make test, 3 of 3: all but long tests under Keras 3, examples of docstrings, and lint (five minutes)"
	@TF_ENABLE_ONEDNN_OPTS=0 $(PYTEST) -n 2 --doctest-modules tests tfxc

test-long: setup-tests  ## Whole examples and guide programs, kills, devices, servers, and more cases
	@echo "make test-long, 1 of 2: long tests of what depends on Keras, under tf-keras (three minutes)"
	@TF_ENABLE_ONEDNN_OPTS=0 TF_USE_LEGACY_KERAS=1 $(PYTEST) -n 2 -m "long and both_keras" tests
	@echo "make test-long, 2 of 2: all long tests, under Keras 3 (ten minutes)"
	@TF_ENABLE_ONEDNN_OPTS=0 $(PYTEST) -n 2 -m long tests

test-avx2: setup-tests $(AVX2_OPS)  ## The kernels' tests, compiled for processors without AVX-512
	@# Several threads here, one in each worker of all tests.
	@TF_NUM_INTRAOP_THREADS=2 TFXC_OPS_LIBRARY=$(AVX2_OPS) $(PYTEST) -n 2 $(KERNEL_TESTS)

test-arm64: setup  ## The kernels' tests, compiled for ARM, in an emulator: half an hour
	@TF_NUM_INTRAOP_THREADS=2 $(RUN) custom_ops/arm64.py -m pytest -q -o addopts= -p no:cacheprovider $(ARM64_TESTS)

sanitize: setup-tests  ## The ops' tests and fuzzers with sanitizers: addresses, undefined behaviour, threads
	$(RUN) custom_ops/build.py --threads
	build/custom_ops/threads/kernel_threads
	$(RUN) custom_ops/build.py --sanitize
	$(SANITIZER) TFXC_OPS_LIBRARY=$(SANITIZED_OPS) $(PYTEST) -n 0 -s -p no:cacheprovider $(SANITIZED_TESTS)

mutants: setup-tests  ## Break each estimate in turn: the tests have to find it
	$(RUN) tests/mutants.py

fuzz: setup-tests  ## Random calls of every op and reader for an hour, or TFXC_FUZZ_SECONDS
	$(RUN) tests/fuzz/run_fuzz.py

lint: setup-tests  ## Check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy tfxc

docs: setup  ## Build the user's guide and the reference, and open it in Chromium; writes site/
	$(RUN) -m pip install --quiet --no-build-isolation -e ".[docs]"
	$(BIN)/mkdocs build --quiet --strict
	$(RUN) tests/browser.py site

wheels: setup  ## A wheel with the ops for each supported TensorFlow and one for any system, each tried; writes dist/
	$(RUN) custom_ops/build_wheel.py | tee build/wheels.txt
	$(RUN) tests/wheel.py $$(grep 'whl$$' build/wheels.txt)

pages: setup-tests  ## Write docs/benchmarks and the README's table from benchmarks/results
	$(RUN) benchmarks/write_pages.py

bench: setup  ## Run every benchmark at its default size
	$(RUN) -m pip install --quiet -e ".[bench]" --no-build-isolation
	@set -e; for script in $(BENCHMARKS); do echo "== $$script"; $(RUN) "$$script"; done

clean:  ## Remove everything built or written, except .venv and the trainings in runs
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
	$(RUN) -m pip install --quiet --no-build-isolation -e ".[examples]"
	touch $@

# Apart, so that the demo does not wait for them.
$(TEST_SETUP): pyproject.toml | $(SETUP)
	$(RUN) -m pip install --quiet --no-build-isolation -e ".[test,examples]"
	touch $@

$(AVX2_OPS): $(OPS_SOURCES) | $(SETUP)
	$(RUN) custom_ops/build.py --level x86-64-v3
	@touch $@

$(OPS): $(OPS_SOURCES) | $(SETUP)
	$(RUN) setup.py --quiet build_ext --inplace
	@test ! -e $@ || touch $@
