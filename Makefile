# Every target sets up what it needs; nothing has to be done before.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
READY := $(VENV)/.ready
WRITES := $(VENV)/.writes
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

VERSION = $(shell $(PYTHON) -c 'import sys; print("fine" if sys.version_info >= (3, 11) else sys.version.split()[0])')
NEEDS = Mailonce needs Python 3.11 or newer; $(PYTHON) is $(or $(VERSION),not there). Name another: make PYTHON=python3.12

.PHONY: setup run test lint docs docs-reference screenshots demo bench walk faults dist clean

setup: $(READY)

# Runtime dependencies, and what the README's receiver needs.
$(RUNS): pyproject.toml constraints.txt
	$(if $(filter fine,$(VERSION)),,$(error $(NEEDS)))
	@echo "Installing the dependencies of Mailonce into $(VENV). This takes a minute, and only the first time."
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) -e '.[receiver]'
	@touch $@

$(READY): $(RUNS)
	@echo "Installing the tools for tests and lint into $(VENV). This takes a minute, and only the first time."
	@$(INSTALL) -e '.[dev]'
	@touch $@

$(WRITES): $(RUNS)
	@echo "Installing the tools for the documentation into $(VENV). This takes a minute, and only the first time."
	@$(INSTALL) -e '.[docs]'
	@touch $@

run: $(RUNS)
	@$(BIN)/mailonce serve

test: $(READY)
	$(BIN)/python -m pytest -n 6 --dist worksteal $(if $(SEED),--hypothesis-seed=$(SEED)) $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Writes site/. A broken link fails the build; with --quiet, mkdocs would not count it.
docs: $(WRITES)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The documentation is in site/: open site/index.html"

screenshots: $(READY)
	$(BIN)/python -m tests.screenshots

docs-reference: $(READY)
	$(BIN)/python -m tests.configuration_page
	$(BIN)/python -m tests.capacity_page
	$(BIN)/python -m tests.api_page
	$(BIN)/python -m tests.alert_rules
	$(BIN)/python -m tests.payload_page

demo: $(READY)
	$(BIN)/python -m tests.demo

bench: $(READY)
	$(BIN)/python -m tests.bench $(ARGS)

walk: $(READY)
	$(BIN)/python -m tests.walk $(ARGS)

faults: $(READY)
	$(BIN)/python -m tests.faults $(ARGS)

# Wheel and sdist, by the pinned tools. The wheel is made from the sdist, so that this one is complete.
dist: $(READY)
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m twine check --strict dist/*

clean:
	rm -rf $(VENV) build site dist *.egg-info
