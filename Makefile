# Everything a developer types. `make demo` and `make test` set up .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= $(shell nproc)

# Quick native rebuild for work on the core: the module lands beside the Python sources.
.PHONY: dev
dev:
	@cmake -S . -B build/dev -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE=$(abspath $(BIN))/python >/dev/null
	cmake --build build/dev -j $(JOBS)
	cp build/dev/_core*.so src/ringleader/_core.tmp && mv src/ringleader/_core.tmp src/ringleader/$$(basename build/dev/_core*.so)
