# Two commands for a fresh machine: `make demo` and `make test`. Each makes .venv itself and is quick when
# nothing changed. PYTHON chooses the interpreter.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo desk test suite quick golden lint style types bench holders docs wheels clean system
.DEFAULT_GOAL := demo

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Sfumato needs Python 3.11 or newer; name one with: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv .venv

# torch comes first and alone: asked for by an exact version, pip takes a CPU build where there is one.
.venv/installed: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing Sfumato into .venv (a few minutes the first time)"
	@$(PIP) torch==2.13.0
	@$(PIP) --editable '.[lab]'
	@touch $@

.venv/installed-dev: .venv/installed
	@echo "Installing what the tests need"
	@$(PIP) --editable '.[dev,all]'
	@touch $@

.venv/installed-bench: .venv/installed-dev
	@$(PIP) --editable '.[bench]'
	@touch $@

.venv/installed-desk: .venv/installed
	@echo "Installing what the desk needs"
	@$(PIP) --editable '.[desk,train,synthesis]'
	@touch $@

demo: .venv/installed
	@$(BIN)/sfumato demo

# The web application with example data; it prints who can sign in. PORT chooses the port.
PORT ?= 8000
desk: .venv/installed-desk
	@$(BIN)/sfumato serve out/desk/desk.toml --example --port $(PORT)

# Types are checked beside the tests: mypy alone would leave a core idle.
test: system style
	@$(MAKE) --no-print-directory --jobs 2 types suite

# One worker more than there are cores: tests wait for processes, browsers and engines. The long files come first.
suite: .venv/installed-dev
	$(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

# The quick half of one package's tests, under a minute: make quick PACKAGE=query
PACKAGE ?= accounting
quick: .venv/installed-dev
	$(BIN)/ruff check
	$(BIN)/pytest --numprocesses 2 --dist worksteal -m "not slow" src/sfumato/$(PACKAGE) tests/unit/$(PACKAGE) \
		tests/unit/test_source_guards.py tests/unit/test_exported_names.py

# What commands print and write, recorded: write the record anew, and show what changed.
golden: .venv/installed-dev
	$(BIN)/python tests/golden/test_golden.py

lint: style types

style: .venv/installed-dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports

types: .venv/installed-dev
	$(BIN)/mypy

bench: .venv/installed-bench
	$(BIN)/python bench/run.py

# A coordinator and three holders on this machine, over TLS, train the recipe for MNIST
holders: .venv/installed
	$(BIN)/python bench/holders_here.py

# The pages as a site in site/, and what is published in dist/
docs: .venv/installed-dev
	$(BIN)/mkdocs build --strict

wheels: .venv/installed-dev
	$(BIN)/python -m build --outdir dist

# Servers that some tests talk to; those tests say how to install them where this may not.
system:
	@./.ci/system-packages

clean:
	rm -rf .venv out site dist .mypy_cache .ruff_cache .hypothesis .import_linter_cache bench/results
