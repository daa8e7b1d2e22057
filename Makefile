# Everything runs from one virtual environment, made once and again when pyproject.toml changes.
# `make` = check and test; `make help` lists the rest.

VENV ?= .venv
EXTRAS ?= dev
# Empty for an install that does not point back at this folder (the container image).
EDITABLE ?= -e
# The first interpreter that runs and is new enough; `make PYTHON=/path/to/python3` chooses another.
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
# Further options of the command a target runs: make test ARGS='-k token', make serve ARGS='--port 8080'.
ARGS ?=
# What `make slow` runs, by marker.
SLOW ?= slow or hypothesis
# Tests run on every core; `make test PARALLEL=` runs them in one process.
PARALLEL ?= -n auto --dist worksteal
# Tests start many processes: what Python has compiled is kept, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.PHONY: all install demo test sdk slow check fix serve openapi reference swagger-ui attack bench learning statistics chaos mutants upgrades e2e pictures alerts drills clean help

all: check test  ## Check and test (the default)

install: $(INSTALLED)  ## Make the virtual environment and install Forage with its tools

$(INSTALLED): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Forage needs Python 3.11 or newer, and none was found." \
		"Install it, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Forage needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
		"Name another: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(EDITABLE) '.$(if $(EXTRAS),[$(EXTRAS)])'
	@touch $@

demo: install  ## Install, start the service, let three policies learn a pet shop, write the report
	@BIN=$(BIN) sh .ci/demo $(ARGS)

test: install  ## Run the tests, in minutes (finds or installs redis-server and node; ARGS=--cov: with branch coverage)
	@sh .ci/redis
	@sh .ci/node
	$(BIN)/python -m pytest $(PARALLEL) -m 'not slow and not statistics and not browser' $(ARGS)

sdk: install  ## Test the SDK in Node 18, 20 and 22, which npm installs into out/node
	nodes=$$(sh .ci/node 18 20 22) && NODES="$$nodes" $(BIN)/python -m pytest -vv tests/sdk $(ARGS)

slow: install  ## Run slow tests, and properties on all of their examples (minutes; SLOW=slow: the former)
	@sh .ci/redis
	@sh .ci/node
	$(BIN)/python -m pytest $(PARALLEL) -m '($(SLOW)) and not statistics' \
		--hypothesis-profile full --timeout 600 $(ARGS)

statistics: install  ## Run the slow statistical tests
	$(BIN)/python -m pytest $(PARALLEL) -m statistics --timeout 3600 $(ARGS)

chaos: install  ## Kill, cut and fill under load (ten minutes or more; ARGS='--seconds 120' is short)
	@sh .ci/redis
	$(BIN)/python -m tests.chaos $(ARGS)

mutants: install  ## Plant bugs, one at a time: the tests or chaos must find each (hours; ARGS='--only WAIT')
	@sh .ci/redis
	@sh .ci/node
	$(BIN)/python -m tests.mutants $(ARGS)

upgrades: install  ## Run an older Forage of this clone's history beside this one, up and down again, under load
	@sh .ci/redis
	$(BIN)/python -m tests.upgrades $(ARGS)

e2e: install  ## Drive demo and console in a real Chromium (ten minutes; out/screenshots/)
	@for browser in chromium chromium-browser google-chrome google-chrome-stable; do \
		command -v $$browser >/dev/null && exit 0; done; echo "these tests drive a Chromium that is" \
		"installed, and none was found: apt-get install chromium" >&2; exit 1
	@$(BIN)/python -c 'import playwright' 2>/dev/null || $(BIN)/python -m pip install $(EDITABLE) '.[e2e]'
	$(BIN)/python -m pytest -m browser --timeout 900 tests/e2e $(ARGS)

# Screenshots come from a running service, plots of docs/policies.md and docs/performance.md from
# the figures in benchmarks/results; docs/pictures/README.md says how to measure these anew.
pictures: install  ## Make every picture of README and docs anew (three minutes; needs a Chromium)
	@$(BIN)/python -c 'import playwright' 2>/dev/null || $(BIN)/python -m pip install $(EDITABLE) '.[e2e]'
	sed -f .ci/dark.sed docs/pictures/architecture.svg > docs/pictures/architecture-dark.svg
	$(BIN)/python -m benchmarks.learning.document
	$(BIN)/python -m benchmarks.http.document
	$(BIN)/python -m tests.e2e.pictures

alerts:  ## Check and test the alert rules, check the dashboard's queries (needs promtool)
	@command -v promtool >/dev/null || { echo "the alert rules are tested with promtool, which is not" \
		"on the PATH: apt-get install prometheus" >&2; exit 1; }
	cd deploy/prometheus && promtool check config prometheus.yml && promtool test rules rules_test.yml
	@mkdir -p out
	$(PYTHON) .ci/queries out/queries.yml && promtool check rules out/queries.yml

drills: install  ## Break a live service and see its alerts fire in time (8 minutes; needs prometheus)
	@sh .ci/redis
	$(BIN)/python -m tests.drills $(ARGS)

check: install  ## Check format, lint, imports and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

fix: install  ## Format, and repair what the linter can repair
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

serve: install  ## Start the service on the embedded store
	$(BIN)/forage serve $(ARGS)

openapi: install  ## Write the pinned OpenAPI description anew
	@mkdir -p out
	$(BIN)/python -m service openapi > out/openapi.json
	mv out/openapi.json tests/http/openapi.json

reference: install  ## Write the reference of experiment files anew
	$(BIN)/python -m service.definition.reference > docs/experiment.md.new
	mv docs/experiment.md.new docs/experiment.md

swagger-ui:  ## Fetch Swagger UI from npm anew (ARGS=5.36.0: another version)
	sh .ci/swagger-ui $(ARGS)

attack: install  ## Attack with 5,000 made-up and 20,000 hostile requests (ten minutes; ARGS=--only hostile)
	$(BIN)/python -m tests.attack $(ARGS)

bench: install  ## Run the benchmarks
	$(BIN)/python -m benchmarks $(ARGS)

learning: install  ## Compare what our policies and other libraries learn (installs the extra bench)
	@$(BIN)/python -c 'from importlib.util import find_spec as find; import sys; \
		sys.exit(not (find("mabwiser") and find("vowpalwabbit")))' \
		|| $(BIN)/python -m pip install $(EDITABLE) '.[bench]'
	$(BIN)/python -m benchmarks.learning $(ARGS)

clean:  ## Remove the environment, caches and everything a run wrote to out/
	rm -rf $(VENV) out dist build htmlcov .coverage .coverage.* coverage.xml
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
