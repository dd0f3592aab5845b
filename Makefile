# Everything a developer types. Each target sets up what it needs: `make test` and `make demo` work on a fresh clone.
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
BUILD ?= build
JOBS ?= $(shell nproc)
BIN := $(abspath $(VENV))/bin
CMAKE := $(BIN)/cmake
CMAKE_FLAGS := -G Ninja -DCMAKE_MAKE_PROGRAM=$(BIN)/ninja -DRINGLEADER_WERROR=ON
# pip puts the package in .venv as an editable install without a native module of its own: `dev` builds that, beside the sources.
INSTALLED := $(VENV)/.installed

# Every rank of a test or a benchmark is a Python of its own: without bytecode on disk each one compiles the whole package.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help:
	@echo 'make test         set up .venv, build, run the quick part of the tests: every subject, a sample of its cases'
	@echo 'make test-all     all tests of the Python package'
	@echo 'make demo         train a small GPT on real text over Ringleader and over Gloo'
	@echo 'make bench-peers  measure against Open MPI, MPICH, Intel MPI, which it installs below build/peers'
	@echo 'make bench-regret measure what the tuned choice costs against the best (REGRET_ARGS="--places 2:shm --keep")'
	@echo 'make bench-scale  what the built-in choice costs in simulation, for up to 512 hosts (an hour; SCALE_ARGS=--help)'
	@echo 'make bench-compression  what compressors cost on one core, against torch; rewrites the table in docs/'
	@echo 'make bench-convergence  train with every compressor on real data, against uncompressed'
	@echo 'make bench-slow   training steps at 200 Mbit/s and 1 Gbit/s, compressed and not (root)'
	@echo 'make bench-training  training steps of DDP, DataParallel and FSDP2 against Gloo, on one host and between two'
	@echo 'make bench        measure against Gloo; rewrites the tables and plots in the documentation'
	@echo 'make verify-all   prove every algorithm for up to 256 ranks'
	@echo 'make mpi          install Open MPI and MPICH below build/peers; make test does it too'
	@echo "make test-torch   torch's own distributed tests over Ringleader and Gloo; rewrites their table in docs/"
	@echo 'make test-torch-old     tests of the backend with torch 2.6 (TORCH_OLD=...), the oldest release that is supported'
	@echo 'make test-integrations  Accelerate, Lightning, FSDP2 as in torchtitan; rewrites their table in docs/'
	@echo 'make test-native  C++ tests            make sanitize    the same under ASan/UBSan and TSan'
	@echo 'make lint         ruff, clang-format, which room imports which    make typecheck   mypy --strict, pyright'
	@echo 'make size         lines of each package, product and tests apart'
	@echo 'make docs-check   examples in docstrings, links in the documentation'
	@echo 'make check        lint, typecheck, docs-check, test-native, sanitize, test-all'
	@echo 'make dev          rebuild the native module in place'

# ---------------------------------------------------------------- set-up

# Repeated only when the list of dependencies changes.
$(INSTALLED): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet '$(TORCH)' 'scikit-build-core>=0.10' 'nanobind>=2.4' 'cmake>=3.25' 'ninja>=1.11'
	$(BIN)/python -m pip install --quiet --no-build-isolation --config-settings=wheel.cmake=false -e '.[dev]'
	@touch $@

# Quick native rebuild: the module lands beside the Python sources. Replaced by a rename, so a running process keeps its own.
.PHONY: dev
dev: | $(INSTALLED)
	@$(CMAKE) -S . -B $(BUILD)/dev $(CMAKE_FLAGS) -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE=$(BIN)/python >/dev/null
	$(CMAKE) --build $(BUILD)/dev -j $(JOBS)
	@module=$$(cd $(BUILD)/dev && ls -t _core*.so | head -n 1); \
	cmp -s $(BUILD)/dev/$$module src/ringleader/$$module || \
	{ cp $(BUILD)/dev/$$module src/ringleader/_core.tmp && mv src/ringleader/_core.tmp src/ringleader/$$module; }

.PHONY: setup
setup: $(INSTALLED) dev

# Open MPI, MPICH and mpi4py (21 MB to download), each in a prefix of its own below build/peers, for the tests under mpirun.
.PHONY: mpi
mpi: setup
	PYTHONPATH=benchmarks $(BIN)/python -m peers.install openmpi mpich mpi4py

# ---------------------------------------------------------------- use

.PHONY: demo bench bench-peers
demo: setup
	$(BIN)/python examples/train_text.py

bench: setup
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/verify_speed.py

bench-peers: setup
	PYTHONPATH=benchmarks $(BIN)/python -m peers $(PEERS_ARGS)

.PHONY: bench-training
bench-training: setup
	$(BIN)/python benchmarks/torch_training.py $(TRAINING_ARGS)

.PHONY: bench-regret
bench-regret: setup
	$(BIN)/python benchmarks/regret.py $(REGRET_ARGS)

.PHONY: bench-scale
bench-scale: setup
	$(BIN)/python benchmarks/scale.py $(SCALE_ARGS)

# CONVERGENCE_ARGS='--tasks digits --seeds 2', SLOW_ARGS='--ranks 2 --rates 200'; see --help.
.PHONY: bench-compression bench-convergence bench-slow
bench-compression: setup
	$(BIN)/python benchmarks/compression.py --json benchmarks/results/compression.json --docs docs/compression.md

bench-convergence: setup
	$(BIN)/python -c 'import sklearn, scipy' 2>/dev/null || $(BIN)/python -m pip install --quiet 'scikit-learn>=1.3'
	$(BIN)/python benchmarks/convergence.py $(CONVERGENCE_ARGS)

bench-slow: setup
	$(BIN)/python benchmarks/slow_network.py $(SLOW_ARGS)

# ---------------------------------------------------------------- checks

# A file is one worker's, whose tests share processes; the files come in their own order, in which the short ones are the last.
TEST_WORKERS ?= 2
XDIST := -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder

# The whole suite is test-all; test is its quick part (tests/conftest.py says which), test-rest what that leaves out.
.PHONY: test test-all test-rest verify-all lint typecheck docs-check check
test: PART := --quick
test-rest: PART := --rest
test test-all test-rest: setup
	@$(MAKE) --no-print-directory -s mpi || echo 'no MPI: the tests under mpirun are skipped'
	$(BIN)/python -m pytest $(XDIST) $(PART) $(PYTEST_ARGS)

# TORCH_SUITE_ARGS=--again repeats what failed; --fresh forgets earlier results; see --help.
.PHONY: test-torch
test-torch: setup
	$(BIN)/python tests/torch_suite/run.py $(TORCH_SUITE_ARGS)

# Another release of torch, by its wheel without CUDA's libraries: make test-torch-old TORCH_OLD=2.10.0
TORCH_OLD ?= 2.6.0
TORCH_OLD_TESTS ?= $(addprefix tests/frameworks/test_,$(addprefix torch_,operations.py surface.py training.py \
	combinations.py wrappers.py registered.py profiling.py failures.py) data_parallel.py data_parallel_priority.py)
OTHER := $(BUILD)/torch-$(TORCH_OLD)
.PHONY: test-torch-old
test-torch-old: setup $(OTHER)/.prepared
	$(OTHER)/bin/python -m pytest $(XDIST) $(TORCH_OLD_TESTS) $(PYTEST_ARGS)

$(OTHER)/.prepared: tests/torch_versions/prepare.py pyproject.toml | $(INSTALLED)
	$(BIN)/python $< $(TORCH_OLD) $(OTHER)
	@touch $@

# Accelerate, Lightning and others in an environment of their own; rewrites the table in docs/integrations.md.
INTEGRATIONS := $(BUILD)/integrations
.PHONY: test-integrations
test-integrations: setup
	@test -x $(INTEGRATIONS)/bin/python || $(PYTHON) -m venv $(INTEGRATIONS)
	$(INTEGRATIONS)/bin/python -m pip install --quiet '$(TORCH)' accelerate lightning scikit-learn 'scikit-build-core>=0.10' 'nanobind>=2.4'
	$(INTEGRATIONS)/bin/python -m pip install --quiet --no-deps --no-build-isolation --config-settings=wheel.cmake=false -e .
	$(INTEGRATIONS)/bin/python tests/integrations/run.py

# Proves every algorithm, as a schedule and lowered, for n = 1..64, 100, 128, 255 and 256.
verify-all: setup
	PYTHONPATH=tests $(BIN)/python tests/pure/sweep_algorithms.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	find native -name '*.[ch]pp' -exec $(BIN)/clang-format --dry-run -Werror {} +
	@mkdir -p $(BUILD)
	$(BIN)/lint-imports --no-cache >$(BUILD)/imports.log || { cat $(BUILD)/imports.log; exit 1; }
	$(PYTHON) tools/native_includes.py

# Lines of the product and of its tests, by package.
.PHONY: size
size:
	@$(PYTHON) tools/size.py

typecheck: $(INSTALLED)
	$(BIN)/mypy
	$(BIN)/basedpyright

docs-check: setup
	$(BIN)/python -m pytest --doctest-modules src/ringleader $(PYTEST_ARGS)
	$(BIN)/python tests/check_docs.py

check: lint typecheck docs-check test-native sanitize test-all

# ---------------------------------------------------------------- native tests

# A hang is a failure: no part of the native tests may take longer than this many seconds.
NATIVE_LIMIT ?= 600
# TSan cannot place its shadow memory under strong address randomisation; where it may not be switched off we try without.
NO_ASLR := $(shell setarch $$(uname -m) -R true 2>/dev/null && echo "setarch $$(uname -m) -R")
export ASAN_OPTIONS ?= detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1
export UBSAN_OPTIONS ?= print_stacktrace=1:halt_on_error=1
export LSAN_OPTIONS ?= suppressions=native/tests/lsan.supp:print_suppressions=0
export TSAN_OPTIONS ?= halt_on_error=1:second_deadlock_stack=1

ADDRESS := address,undefined
# Where the tests of the UCX transport find libucp: the package that `dev` installs, else the system's; without both they are skipped.
# UCX patches mmap and its kin to hear of them, which TSan does not survive.
UCX = UCX_MEM_EVENTS=n RINGLEADER_UCX_LIBRARY=$${RINGLEADER_UCX_LIBRARY:-$$(ls $(VENV)/lib/python*/site-packages/libucx/lib/libucp.so.0 \
	2>/dev/null || echo libucp.so.0)}

define native_build
	@$(CMAKE) -S . -B $(BUILD)/$(1) $(CMAKE_FLAGS) -DRINGLEADER_NATIVE_TESTS=ON $(2) >/dev/null
	$(CMAKE) --build $(BUILD)/$(1) -j $(JOBS)
endef

.PHONY: test-native sanitize sanitize-address sanitize-thread
test-native: setup
	$(CMAKE) --build $(BUILD)/dev -j $(JOBS) --target ringleader_tests
	@# A function shared between instruction sets could be linked in the version that this machine cannot run.
	! nm -C $(BUILD)/dev/CMakeFiles/ringleader_core.dir/native/reduce/isa_*.o | grep ' [TWVu] '
	$(UCX) timeout --kill-after=10 $(NATIVE_LIMIT) $(BUILD)/dev/ringleader_tests $(NATIVE_ARGS)

sanitize-address: | $(INSTALLED)
	$(call native_build,asan,-DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS=-O1 -DRINGLEADER_SANITIZE=$(ADDRESS))
	$(UCX) timeout --kill-after=10 $(NATIVE_LIMIT) $(BUILD)/asan/ringleader_tests $(NATIVE_ARGS)

sanitize-thread: | $(INSTALLED)
	$(call native_build,tsan,-DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS=-O1 -DRINGLEADER_SANITIZE=thread)
	$(UCX) timeout --kill-after=10 $(NATIVE_LIMIT) $(NO_ASLR) $(BUILD)/tsan/ringleader_tests $(NATIVE_ARGS)

sanitize: sanitize-address sanitize-thread

.PHONY: clean
clean:
	rm -rf $(BUILD) src/ringleader/_core*.so
