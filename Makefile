# Every target sets up what it needs; nothing has to be done before.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup run test lint demo bench faults clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY)

run: $(READY)
	$(BIN)/mailonce serve

test: $(READY)
	$(BIN)/python -m pytest -n 4 --dist worksteal $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

demo: $(READY)
	$(BIN)/python -m tests.demo

bench: $(READY)
	$(BIN)/python -m tests.bench $(ARGS)

faults: $(READY)
	$(BIN)/python -m tests.faults $(ARGS)

clean:
	rm -rf .venv build *.egg-info
