# Each target sets up what it needs: on a bare machine, Python 3.11 and make are enough.

PYTHON ?= python3
VERSIONS := 3.11 3.12 3.13 3.14
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Each process of the tests would compile what it imports, if an environment forbids to write byte code.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-short test-others check long chaos mutants lua reference size bench-quick bench-backlog format clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Three processes on two cores: tests wait a lot, for processes and for servers.
test: $(INSTALLED) ## Run the tests (the long proofs left out)
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

# What differs most between versions of Python: no tests that use a server.
SHORT := tests/unit tests/services tests/engines tests/contract -k "not postgres and not redis and not valkey"

test-short: $(INSTALLED) ## Run the tests that need no server and no long time
	$(BIN)/python -m pytest -n 2 --dist loadfile $(SHORT)

# Looked for on the PATH and among pyenv's versions. One that is missing, or cannot make virtual environments, is skipped.
test-others: $(INSTALLED) ## Run all tests on one other supported Python, by day in turn, and test-short on each of the rest
	@first=$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	set --; \
	for version in $(VERSIONS); do \
		if [ "$$version" = "$$first" ]; then continue; fi; \
		found=; \
		for python in "python$$version" "$${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$version".*/bin/python; do \
			if "$$python" -c 'import ensurepip, venv' 2>/dev/null; then found=$$python; break; fi; \
		done; \
		if [ -z "$$found" ]; then echo "Python $$version: not found, or without venv and ensurepip; skipped"; continue; fi; \
		set -- "$$@" "$$version=$$found"; \
	done; \
	if [ $$# -eq 0 ]; then exit 0; fi; \
	turn=$$(($$(date +%s) / 86400 % $$#)); \
	for other in "$$@"; do \
		if [ $$turn -eq 0 ]; then target=test; else target=test-short; fi; \
		turn=$$((turn - 1)); \
		echo "Python $${other%%=*}: $${other#*=}, make $$target"; \
		$(MAKE) --no-print-directory PYTHON="$${other#*=}" VENV="build/venv-$${other%%=*}" $$target || exit 1; \
	done

check: $(INSTALLED) ## Check format, lint, types and import direction
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy
	$(BIN)/python -c 'from importlinter.cli import lint_imports_command as main; main()' --no-logo --no-cache

demo: $(INSTALLED) ## Run the demo: a few thousand jobs on one SQLite file, and a worker killed in the middle
	$(BIN)/python -m holdfast.demo build/demo

bench-quick: $(INSTALLED) ## Measure beside bare loops on this machine; writes build/bench.json
	$(BIN)/python -m benchmarks.quick

bench-backlog: $(INSTALLED) ## Drain 1k to 200k queued jobs with each kind of statistics; a million on Redis; fails when one is out of line
	$(BIN)/python -m benchmarks.backlog

long: $(INSTALLED) ## Run the long proofs: the differential machine at full length, the suites without fast paths
	$(BIN)/python -m pytest -m long
	HOLDFAST_FAST_PATHS=0 $(BIN)/python -m pytest -n 2 tests/contract tests/differential

chaos: $(INSTALLED) ## Play the faults at full length: servers restarted, backends and workers killed, wires cut
	$(BIN)/python -m pytest -m chaos -rP

# ONLY="the gate, claim.sql" runs those whose name, file or part contains one of these texts.
mutants: $(INSTALLED) ## Plant bugs in a copy of the source, one at a time, and see that the tests notice them
	$(BIN)/python tests/support/run_mutants.py "$(ONLY)"
	$(if $(ONLY),,$(BIN)/python -m pytest -m long tests/mutants)

lua: $(INSTALLED) ## Generate the Lua rules of the Redis engine from the ledger
	$(BIN)/python -m tools.lua.build

reference: $(INSTALLED) ## Generate docs/reference from the help pages of all commands and from the docstrings
	$(BIN)/python -m tools.reference

size: $(INSTALLED) ## Count code lines, and the functions on the main paths; WRITE=1 writes docs/contributing/size.md
	$(BIN)/python -m tools.size $(if $(WRITE),--write)

format: $(INSTALLED) ## Format the code and apply the safe lint fixes
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

clean: ## Remove caches and build products (delete .venv by hand to start afresh)
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment. The stamp is older than pyproject.toml or constraints.txt when it has to be renewed.
# $(PYTHON) is asked first; when it is too old, a newer one on the PATH is taken.
# The constraints also hold for the build backend (PIP_CONSTRAINT, in newer pips PIP_BUILD_CONSTRAINT).
$(INSTALLED): pyproject.toml constraints.txt
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		for python in "$(PYTHON)" $(addprefix python,$(VERSIONS)); do \
			"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; \
			python=; \
		done; \
		if [ -z "$$python" ]; then \
			echo "Holdfast needs Python 3.11 or newer; '$(PYTHON)' is: $$("$(PYTHON)" --version 2>&1 || true)" >&2; \
			echo "Install one, or name it: make PYTHON=/path/to/python3.11 ..." >&2; \
			exit 1; \
		fi; \
		if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
			version=$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
			echo "'$$python' cannot make virtual environments (venv or ensurepip is missing)." >&2; \
			echo "On Debian and Ubuntu: apt install python$$version-venv" >&2; \
			exit 1; \
		fi; \
		echo "Making $(VENV) with $$("$$python" --version)"; \
		"$$python" -m venv $(VENV); \
	fi
	@echo "Installing holdfast and its tools into $(VENV)"
	@PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
		$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@
