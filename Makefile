# Everything runs from one virtual environment. Each target installs the extras of pyproject.toml
# that it needs, and again when that file changes. `make` = check and test; `make help` lists all.

VENV ?= .venv
# What `make install` installs: space-separated extras of pyproject.toml.
EXTRAS ?= test sim train
# Exact versions of what is installed; empty: the newest that pyproject.toml allows.
CONSTRAINTS ?= constraints.txt
# Empty for an install that does not point back at this folder (the container image).
EDITABLE ?= -e
# The first interpreter that runs and is new enough; `make PYTHON=/path/to/python3` chooses another.
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
# Further options of the command a target runs: make test ARGS='-k token', make serve ARGS='--port 8080'.
ARGS ?=
# What `make slow` runs, by marker.
SLOW ?= slow or hypothesis
# Tests run on every core, one file in one process; `make test PARALLEL=` runs all in one process.
PARALLEL ?= -n auto --dist loadfile
# Markers of tests that only `make nightly` runs.
NIGHTLY := process or slow or statistics or browser
# Tests start many processes: what Python has compiled is kept, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

BIN := $(VENV)/bin

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: all install lock release demo test nightly lowest newest coverage sdk slow check fix secrets serve openapi settings swagger-ui attack bench learning statistics chaos mutants e2e pictures alerts drills clean help

all: check test  ## Check and test (the default)

install: $(EXTRAS:%=$(VENV)/.%)  ## Make the virtual environment and install Forage with its tools

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Forage needs Python 3.11 or newer, and none was found." \
		"Install it, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Forage needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
		"Name another: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# To compile every module takes pip a third of its time; Python compiles what it imports. An image
# is compiled whole, since its process may not write there.
$(VENV)/.%: pyproject.toml clients/python/pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(BIN)/python -m pip install --quiet $(if $(EDITABLE),--no-compile) $(CONSTRAINTS:%=-c %) $(EDITABLE) clients/python $(EDITABLE) '.[$*]'
	@touch $@

demo: $(VENV)/.sim $(VENV)/.train  ## Install, start the service, let three policies learn a pet shop, write the report
	@BIN=$(BIN) sh .ci/demo $(ARGS)

test: $(VENV)/.test  ## Run the tests of the gate, in three to five minutes on two cores (finds or installs redis-server)
	@sh .ci/redis
	$(BIN)/python -m pytest $(PARALLEL) -m 'not ($(NIGHTLY))' $(ARGS)

nightly:  ## Run every check there is and print what passed (an hour; before a release)
	@sh .ci/nightly

lowest:  ## Check and test with the lowest versions that pyproject.toml allows
	@mkdir -p out
	$(PYTHON) .ci/lowest > out/lowest.txt
	$(MAKE) check test VENV=out/lowest CONSTRAINTS=out/lowest.txt

newest:  ## Check and test with the newest versions that pyproject.toml allows
	rm -rf out/newest
	$(MAKE) check test VENV=out/newest CONSTRAINTS=

coverage: $(VENV)/.nightly  ## Run all but slow tests with branch coverage, which must reach 90 percent
	@sh .ci/redis
	@sh .ci/node
	$(BIN)/python -m pytest $(PARALLEL) -m 'not slow and not statistics and not browser' --timeout 600 \
		--cov --cov-report=term:skip-covered tests $(ARGS)

sdk: $(VENV)/.test  ## Test the SDK in Node 18, 20 and 22, which npm installs into out/node
	nodes=$$(sh .ci/node 18 20 22) && NODES="$$nodes" $(BIN)/python -m pytest -vv tests/sdk $(ARGS)

slow: $(VENV)/.nightly  ## Run slow tests, and properties on all of their examples (minutes; SLOW=slow: the former)
	@sh .ci/redis
	@sh .ci/node
	$(BIN)/python -m pytest $(PARALLEL) -m '($(SLOW)) and not statistics' \
		--hypothesis-profile full --timeout 600 tests $(ARGS)

# The extra bench has the other libraries of docs/learning.md, whose rows are replayed.
statistics: $(VENV)/.nightly $(VENV)/.bench  ## Run the slow statistical tests, and replay the rows of docs/learning.md
	$(BIN)/python -m pytest $(PARALLEL) -m statistics --timeout 3600 tests $(ARGS)

chaos: $(VENV)/.nightly  ## Kill, cut and fill under load (twenty minutes; ARGS='--seconds 120' is short)
	@sh .ci/redis
	$(BIN)/python -m tests.chaos $(ARGS)

mutants: $(VENV)/.nightly  ## Plant bugs, one at a time: the tests or chaos must find each (hours; ARGS='--only WAIT')
	@sh .ci/redis
	@sh .ci/node
	$(BIN)/python -m tests.mutants $(ARGS)

e2e: $(VENV)/.docs  ## Drive demo and console in a real Chromium (ten minutes; out/screenshots/)
	@for browser in chromium chromium-browser google-chrome google-chrome-stable; do \
		command -v $$browser >/dev/null && exit 0; done; echo "these tests drive a Chromium that is" \
		"installed, and none was found: apt-get install chromium" >&2; exit 1
	$(BIN)/python -m pytest -m browser --timeout 900 tests/e2e $(ARGS)

# Screenshots come from a running service, plots of docs/learning.md from the figures in
# benchmarks/results; docs/pictures/README.md says how to measure these again.
pictures: $(VENV)/.docs  ## Make every picture of README and docs anew (three minutes; needs a Chromium)
	sed -f .ci/dark.sed docs/pictures/architecture.svg > docs/pictures/architecture-dark.svg
	$(BIN)/python -m benchmarks.learning.publish
	$(BIN)/python -m tests.e2e.pictures

alerts:  ## Check and test the alert rules, check the dashboard's queries (needs promtool)
	@command -v promtool >/dev/null || { echo "the alert rules are tested with promtool, which is not" \
		"on the PATH: apt-get install prometheus" >&2; exit 1; }
	cd deploy/prometheus && promtool check config --syntax-only prometheus.yml && promtool test rules rules_test.yml
	@mkdir -p out
	$(PYTHON) .ci/queries out/queries.yml && promtool check rules out/queries.yml

drills: $(VENV)/.nightly  ## Break a live service and see its alerts fire in time (10 minutes; needs prometheus)
	@sh .ci/redis
	$(BIN)/python -m tests.drills $(ARGS)

check: $(VENV)/.test  ## Check format, lint, imports and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

fix: $(VENV)/.test  ## Format, and repair what the linter can repair
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

secrets: $(VENV)/.sim  ## Make the passwords and keys that docker-compose.yml mounts, in deploy/secrets
	@BIN=$(BIN) sh .ci/secrets

serve: $(VENV)/.train  ## Start the service on the embedded store
	$(BIN)/forage serve $(ARGS)

lock:  ## Write constraints.txt anew, from the newest versions that pyproject.toml allows
	@sh .ci/lock

release: $(VENV)/.test  ## Build wheels and npm package in dist/, and try each in an empty environment
	$(BIN)/python .ci/release

openapi: $(VENV)/.test  ## Write the pinned OpenAPI description anew
	@mkdir -p out
	$(BIN)/python -m service openapi > out/openapi.json
	mv out/openapi.json tests/http/openapi.json

settings: $(VENV)/.test  ## Write the tables of the settings of policies in docs/ anew
	$(BIN)/python -m tests.docs.settings

swagger-ui:  ## Fetch Swagger UI from npm anew (ARGS=5.36.0: another version)
	sh .ci/swagger-ui $(ARGS)

attack: $(VENV)/.nightly  ## Attack with 5,000 made-up and 20,000 hostile requests (ten minutes; ARGS=--only hostile)
	$(BIN)/python -m tests.attack $(ARGS)

bench: $(VENV)/.bench  ## Run the benchmarks
	$(BIN)/python -m benchmarks $(ARGS)

learning: $(VENV)/.bench  ## Compare what our policies and other libraries learn (installs the extra bench)
	$(BIN)/python -m benchmarks.learning $(ARGS)

clean:  ## Remove the environment, caches and everything a run wrote to out/
	rm -rf $(VENV) out dist build htmlcov .coverage .coverage.* coverage.xml
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
