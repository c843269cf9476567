# Every target sets up what it needs: Python 3.11+ is the only thing assumed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check fix model privileges restarts chaos soak faults bench bench-peers bench-growth clean
.DEFAULT_GOAL := test

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Queasy needs Python 3.11 or newer; this is %s. Say which: make PYTHON=python3.12" % sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(READY)  ## the main job, on the embedded server
	$(BIN)/python examples/demo.py

test: $(READY)  ## every test that fits in six minutes; most of them wait, so three at a time
	$(BIN)/pytest -n 3 --dist loadfile
	$(BIN)/pytest -n 2 --dist loadfile -q --as worker $(AS_WORKER)

# Enough to see that the user of docs/protocol.md can do what workers do; `privileges` runs all.
AS_WORKER := tests/client/test_dispatch.py tests/faults/process/test_deaths.py

check: $(READY)  ## lint, format, types, layers, and the tests that take seconds
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest -q tests/store/test_promises.py tests/store/test_mutants.py

fix: $(READY)  ## what `check` can mend by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

STEPS ?= 1000000
model: $(READY)  ## a million random steps against the model, on each server there is
	$(BIN)/pytest tests/model -s --steps $(STEPS)

privileges: $(READY)  ## all as the least privileged user, and over TLS; about ten minutes
	$(BIN)/pytest -n 2 --dist loadfile --as worker
	$(BIN)/pytest -n 2 --dist loadfile --as worker --tls $(OVER_TLS)

OVER_TLS := tests/client tests/worker tests/faults/process tests/faults/server/test_outages.py

RESTARTS ?= 200
restarts: $(READY)  ## workers stopped and started 200 times under load; about five minutes
	$(BIN)/pytest tests/worker/supervision/test_restarts.py -s --restarts $(RESTARTS)

SECONDS_OF_FAULTS ?= 20
chaos: $(READY)  ## everything is killed, cut and refused, and every promise checked; five minutes
	$(BIN)/python -m tests.chaos --seconds $(SECONDS_OF_FAULTS)

HOURS ?= 1
soak: $(READY)  ## the same for hours, with more of everything
	$(BIN)/python -m tests.chaos --hours $(HOURS) --seconds 300 --rate 3 --faults 3 --scene processes --scene processes --scene everything

faults: $(READY)  ## each fault by itself, as long as it takes; fuzzing with thousands of examples
	$(BIN)/pytest -n 2 --dist loadfile -m chaos tests/faults
	QUEASY_FUZZ=3000 $(BIN)/pytest -n 2 tests/fuzz --hypothesis-profile=long

bench: $(READY)  ## Queasy alone, next to the bare server; about two minutes
	$(BIN)/python -m benchmarks --rounds 2 --scale 0.5
	$(BIN)/python benchmarks/idle.py --seconds 15 --dispatches 100

ROUNDS ?= 4
bench-peers: $(READY)  ## Queasy and all its peers, into docs/performance.md; about half an hour
	$(BIN)/python -m benchmarks --peers all --rounds $(ROUNDS) --results benchmarks/results.json --document

bench-growth: $(READY)  ## what a job costs the server behind a million others
	$(BIN)/python benchmarks/backlog.py

clean:
	rm -rf $(VENV) benchmarks/.environments .queasy .pytest_cache .ruff_cache .hypothesis build dist
