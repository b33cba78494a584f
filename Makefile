# Every target sets up what it needs from a fresh clone: Python 3.11 or newer and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-units test-edge test-processes lint format native test-native bench fuzz test-real lock clean

# The pinned environment; made again when the lock changes.
$(VENV)/.ready: requirements-test.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-test.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

demo: $(VENV)/.ready ## three simulated regions, clients from many countries, one outage; no network needed
	$(BIN)/gslb demo

test: $(VENV)/.ready ## unit and system tests, loopback only; three runs at once, for most of the time is waiting
	$(MAKE) --no-print-directory -j3 --output-sync=target test-units test-edge test-processes

PROCESSES := $(wildcard tests/system/test_w*.py tests/system/test_tls*.py tests/system/test_signals.py)
test-units: $(VENV)/.ready
	$(BIN)/python -m pytest tests --ignore=tests/system
test-edge: $(VENV)/.ready
	$(BIN)/python -m pytest tests/system $(addprefix --ignore=,$(PROCESSES))
test-processes: $(VENV)/.ready
	$(BIN)/python -m pytest $(PROCESSES)

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

native: build/native/.ready ## the hot rooms compiled to build/native; needs a C compiler

build/native/.ready: $(VENV)/.ready $(shell find gslb -name '*.py')
	rm -f $@
	$(BIN)/python -m gslb.native build/native
	touch $@

# All but those that read the sources, or the files beside them.
OF_SOURCES := tests/test_import_floors.py tests/test_native.py tests/test_packaging.py
test-native: build/native/.ready ## the tests against the compiled rooms
	rm -rf build/tested && mkdir -p build/tested && cp -r tests benchmarks config pyproject.toml build/tested/
	cd build/tested && PYTHONPATH=$(CURDIR)/build/native ../../$(BIN)/python -P -m pytest tests $(addprefix --ignore=,$(OF_SOURCES))

bench: $(VENV)/.ready ## CPU per request and event beside nginx and others found on this machine
	if command -v $${CC:-cc} >/dev/null; then $(MAKE) build/native/.ready; fi
	$(BIN)/python benchmarks/datapath.py

# A minute for each target: `make fuzz FUZZ_SECONDS=600` for longer. What is found lies in .fuzz/failed-*.
FUZZ_SECONDS ?= 60
fuzz: $(VENV)/.ready ## coverage-guided fuzzing of requests, answers, event streams and whole exchanges
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "atheris>=3,<4"
	for target in request response events exchange; do \
	  $(BIN)/python -m tests.fuzz.run $$target $(FUZZ_SECONDS) .fuzz && $(BIN)/python -m tests.fuzz.reach $$target .fuzz || exit 1; \
	done

test-real: $(VENV)/.ready ## two real vLLM servers on the CPU as two regions; installs 3.5 GB on first use
	$(BIN)/python tests/real/run.py

lock: ## refresh both lock files (needs pip-tools on PATH)
	pip-compile -q --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header \
	  --strip-extras --allow-unsafe -o requirements.lock pyproject.toml
	pip-compile -q --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-header \
	  --strip-extras --allow-unsafe --extra test -o requirements-test.lock pyproject.toml

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .fuzz build dist *.egg-info
