# Every target sets up what it needs. Python 3.11 or newer is all that must be installed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Long test runs print progress every 20 seconds, and a summary to paste into a document.
LONG := $(BIN)/pytest -p tests.progress

.PHONY: demo test check fix model privileges restarts chaos soak faults bench bench-peers bench-growth bench-crashes bench-recovery bench-against clean
.DEFAULT_GOAL := test

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Queasy needs Python 3.11 or newer, and this is %s. Choose another: make PYTHON=python3.12" % sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(READY)  ## a demonstration, on the embedded server
	$(BIN)/python examples/demo.py

test: $(READY)  ## all tests except the long ones, in ten minutes; three processes, because most tests wait
	$(BIN)/pytest -n 3 --dist loadfile
	$(BIN)/pytest -n 2 --dist loadfile -q --as worker $(AS_WORKER)

# A sample that shows that the least privileged user of docs/guides/security.md can do a worker's work.
# `make privileges` runs all tests as that user.
AS_WORKER := tests/client/test_dispatch.py tests/faults/process/test_deaths.py

check: $(READY)  ## lint, format, types, layers, and the tests that take seconds
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest -q tests/store/test_promises.py tests/store/test_mutants.py

fix: $(READY)  ## corrects what `check` can correct by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

STEPS ?= 1000000
model: $(READY)  ## a million random steps compared with the model, on each installed server
	$(BIN)/pytest tests/model -s --steps $(STEPS)

privileges: $(READY)  ## all tests as the least privileged user, then over TLS; about ten minutes
	$(LONG) -n 2 --dist loadfile --as worker
	$(LONG) -n 2 --dist loadfile --as worker --tls $(OVER_TLS)

OVER_TLS := tests/client tests/worker tests/faults/process tests/faults/server/test_outages.py

RESTARTS ?= 200
restarts: $(READY)  ## 200 restarts of workers under load; about five minutes
	$(LONG) tests/worker/supervision/test_restarts.py -s --restarts $(RESTARTS)

SECONDS_OF_FAULTS ?= 20
REPEAT ?= 1
chaos: $(READY)  ## twelve scenes of faults, and a check of every promise; eight minutes each time
	$(BIN)/python -m tests.chaos --seconds $(SECONDS_OF_FAULTS) --repeat $(REPEAT)

HOURS ?= 1
soak: $(READY)  ## two scenes for hours, with three times the jobs and the faults
	$(BIN)/python -m tests.chaos --hours $(HOURS) --seconds 300 --rate 3 --faults 3 --scene processes --scene processes --scene everything

faults: $(READY)  ## the long tests of single faults; fuzzing with thousands of examples
	$(LONG) -n 2 --dist loadfile -m chaos tests/faults
	QUEASY_FUZZ=3000 $(LONG) -n 2 tests/fuzz --hypothesis-profile=long

bench: $(READY)  ## Queasy and the bare server; about two minutes
	$(BIN)/python -m benchmarks --rounds 2 --scale 0.5
	$(BIN)/python benchmarks/idle.py --seconds 15 --dispatches 100

ROUNDS ?= 4
bench-peers: $(READY)  ## Queasy and all its peers, into docs/performance.md; about half an hour
	$(BIN)/python -m benchmarks --peers all --rounds $(ROUNDS) --results benchmarks/results.json --document

bench-growth: $(READY)  ## the cost of a job in a queue of a million others
	$(BIN)/python benchmarks/backlog.py

bench-crashes: $(READY)  ## what SIGKILL costs Queasy and its peers, into docs/crashes.md; under half an hour
	$(BIN)/python -m benchmarks.crash --peers all --document

KILLS ?= 200
FREEZES ?= 200
bench-recovery: $(READY)  ## how soon jobs run elsewhere after a host is killed or frozen; about a quarter of an hour
	$(BIN)/python -m benchmarks.recovery --kills $(KILLS) --freezes $(FREEZES)

AGAINST ?= ../old
bench-against: $(READY)  ## this code and that of another checkout in turns; fails if a metric is below 0.95
	$(BIN)/python -m benchmarks --rounds $(ROUNDS) --against $(AGAINST)

clean:
	rm -rf $(VENV) benchmarks/.environments tests/interop/.packages .queasy .pytest_cache .ruff_cache .hypothesis build dist
