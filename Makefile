# The whole developer interface. Needs a Python ≥ 3.11 and the package index; sets up the rest.
#   make example a shop on a real Kafka that learns from clicks
#   make demo    see it work          make check   the fast loop: format, lint, types, imports, quick tests
#   make test    everything           make bench   the benchmarks      make soak   crashes and chance, for long
#   make docs    the API documentation, in build/api
#   make check ROOM=lab   the fast loop of one room: its types and its quick tests
# PYTHON=python3.12 picks the interpreter, VENV=folder where the environment lives.
PYTHON ?= python3
VENV ?= .venv
PEERS ?= $(VENV)-peers
SOAK ?= 20
ROOM ?=
PROCESSORS := $(shell getconf _NPROCESSORS_ONLN)
# Processes that run the suite, more than there are processors: what starts processes and brokers
# waits half of its time. All share one broker, which starts when the first of them needs it.
TESTERS ?= $(shell expr $(PROCESSORS) + 2)

BIN := $(VENV)/bin
WHEEL := $(CURDIR)/build/wheel
SETUP := $(PYTHON) requirements/environment.py $(VENV)

# Python keeps what it has compiled, whatever the shell asks for: without that every process of the
# suite, and every process that these start, compiles all that it imports anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo example test check docs bench soak broker python runtime tools lint style types wheel quickstart compiled quick suite

demo: runtime
	$(BIN)/streamdp demo

example: python
	@$(SETUP) broker
	$(BIN)/python deploy/example/start.py

# Types are checked beside the tests: mypy takes one processor, and says nothing until it is done.
check: tools style
	@$(MAKE) --no-print-directory -j2 types quick

test: tools
	sh requirements/system.sh
	@$(MAKE) --no-print-directory -j2 style wheel quickstart compiled
	@$(MAKE) --no-print-directory -j2 types suite

quick:
	$(BIN)/pytest -n $(PROCESSORS) --dist worksteal -q -m "not kafka and not system and not slow" $(if $(ROOM),tests/$(ROOM))

# The suite runs against the wheel that users install, never against the checkout.
suite:
	PYTHONPATH=$(WHEEL) STREAMDP_WHEEL=$(WHEEL) $(BIN)/pytest -n $(TESTERS) --dist worksteal --cov --cov-report=term-missing:skip-covered

# Once, rather than by every tester: pytest rewrites the tests' assertions when it first reads them.
compiled:
	$(BIN)/pytest --collect-only -q >/dev/null || true  # `suite` says what is wrong

# Once, rather than at each of the suite's two dozen starts of a broker.
quickstart:
	$(BIN)/python -m streamdp.testing.quick_start || true

wheel:
	rm -rf build
	$(BIN)/python -m build --wheel --no-isolation --outdir build/dist . >/dev/null
	$(BIN)/python -m pip install --quiet --no-deps --no-index --target $(WHEEL) build/dist/*.whl

# Each benchmark prints tables and writes bench-results/<its name>.json; PEERS holds the systems
# that cannot share an environment with streamdp.
bench: python
	@$(SETUP) bench
	@$(PYTHON) requirements/environment.py $(PEERS) peers
	mkdir -p bench-results
	for file in tests/bench/bench_*.py; do \
		STREAMDP_PEERS=$(PEERS)/bin/python \
		$(BIN)/python $$file --json bench-results/$$(basename $$file .py).json || exit 1; done

soak: tools
	STREAMDP_SOAK=$(SOAK) $(BIN)/pytest --timeout 0 tests/lab/test_audit_kinds.py tests/service/test_protocol.py \
		tests/service/test_lost_tombstones.py tests/service/test_idle.py tests/assembly/test_assemble.py tests/wire/test_formats.py \
		tests/lab/test_bandit_accounts.py tests/kafka/test_watched.py $(wildcard tests/*/test_crash*.py)

broker: python
	@$(SETUP) broker
	@$(BIN)/python -m streamdp.testing

# Made from docstrings; fails if a link in it leads nowhere.
docs: python
	@$(SETUP) docs
	rm -rf build/api
	$(BIN)/python docs/api.py build/api

lint: style types

style:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache

types:
	$(BIN)/mypy $(if $(ROOM),$(wildcard streamdp/$(ROOM) adapters/streamdp_adapters/$(ROOM) tests/$(ROOM)))

runtime: python
	@$(SETUP) runtime

tools: python
	@$(SETUP) test

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	echo "streamdp needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
	echo "Name another one, for example: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
