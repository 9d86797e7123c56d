# `make run` and `make test` do all the set-up; a fresh machine needs Python ≥ 3.11 and make. `make help` lists the rest.

PORT ?= 8700
DATA ?= ./stateroom-data
TESTS ?= tests
WORKERS ?= 2
PY := .venv/bin/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# The newest Python that runs and can make virtual environments. `make PYTHON=… run` chooses another one.
find_python = for python in python3.14 python3.13 python3.12 python3.11 python3 python; do \
	"$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; \
	done
PYTHON ?= $(shell $(find_python))

# An environment that is half made, was moved here, or whose Python is gone is made anew.
ifneq ($(shell $(PY) -c 'print(open(".venv/made").read().strip())' 2>/dev/null),$(CURDIR))
REMAKE := remake
endif

.DEFAULT_GOAL := help
.PHONY: help run test services check lint types rules docs format crash mutants bench bench-session lock clean remake

help: ## What can be made
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name what; do printf '  make %-13s %s\n' "$$name" "$$what"; done

run: .venv/run ## Start the server: [PORT=8700] [DATA=./stateroom-data]
	@echo "· starting: stateroom serve --port $(PORT) --data $(DATA)   (stop with Ctrl-C; a second start finds everything as it was)"
	@exec .venv/bin/stateroom serve --port $(PORT) --data "$(DATA)"

test: .venv/dev ## Run the tests: [TESTS=tests/…] [WORKERS=2]
	@$(PY) -m pytest -q -n $(WORKERS) --dist worksteal $(TESTS)

# What is there already stays as it is. Without them the tests that need them are skipped, and say so.
DEBIAN := pgbouncer=/usr/sbin/pgbouncer postgresql-15=/usr/lib/postgresql/15/bin/postgres
APT := timeout 300 apt-get -qq -o DPkg::Lock::Timeout=60 -o Acquire::Retries=2

services: ## Install what some tests need beside Python packages: pgbouncer and PostgreSQL 15, on Debian and as root
	@missing=; for wanted in $(DEBIAN); do test -x "$${wanted#*=}" || missing="$$missing $${wanted%=*}"; done; \
	test -z "$$missing" && exit; echo "· installing$$missing"; $(APT) update || exit; \
	failed=0; for package in $$missing; do \
		DEBIAN_FRONTEND=noninteractive $(APT) install -y --no-install-recommends "$$package" >/dev/null || failed=1; \
	done; exit $$failed

check: lint types rules test ## Everything that must hold before a commit

lint: .venv/dev ## Style, formatting, lock files
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	@$(PY) -m tools.lock --check

types: .venv/dev ## Types
	@$(PY) -m mypy

rules: .venv/dev ## Who may import whom, and the house rules
	@.venv/bin/lint-imports --no-cache
	@$(PY) -m tools.house_rules

docs: .venv/dev ## Whether the documentation is complete and its code runs
	@$(PY) -m pytest -q tests/docs

format: .venv/dev ## Put the sources into shape
	@$(PY) -m ruff check --fix
	@$(PY) -m ruff format

crash: .venv/dev ## The long campaigns: kill -9, power cut, full disk
	@$(PY) -m tests.crash.campaign

mutants: .venv/dev ## Break each promise on purpose and see its tests go red
	@$(PY) -m tools.mutants

bench: .venv-bench/made ## Speed beside hand-written code and peers, as ratios
	@.venv-bench/bin/python -m bench
	@.venv-bench/bin/python -m bench.followers

bench-session: .venv-bench/made ## What a session's size, a million of them and a window cost: [ARGS=--help]
	@.venv-bench/bin/python -m bench.session $(ARGS)

lock: .venv/dev ## Write the lock files anew: [UPGRADE=--upgrade]
	@$(PY) -m pip install -qq uv
	@$(PY) -m tools.lock .venv/bin/uv $(UPGRADE)

clean: ## Remove what was made; never your data
	@rm -rf .venv .venv-bench dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache bench/out
	@find src tests tools -name __pycache__ -prune -exec rm -rf {} +

# ── the environment ─────────────────────────────────────────────────────────────────────────────────────────────────

.venv/made: $(REMAKE)
	@test -n "$(PYTHON)" || { echo "Stateroom needs Python 3.11 or newer with venv (on Debian: apt install python3 python3-venv)." >&2; exit 1; }
	@echo "· making .venv with $$($(PYTHON) --version)"
	@rm -rf .venv && $(PYTHON) -m venv .venv
	@echo "$(CURDIR)" > $@

.venv/run: .venv/made requirements.lock pyproject.toml
	@echo "· installing what requirements.lock names"
	@$(PY) -m pip install -qq --require-hashes -r requirements.lock
	@$(PY) -m pip install -qq --no-deps --no-build-isolation -e .
	@touch $@

.venv/dev: requirements-dev.lock .venv/run
	@echo "· installing what requirements-dev.lock names"
	@$(PY) -m pip install -qq --require-hashes -r requirements-dev.lock
	@touch $@

# Peers bring versions of their own: they get an environment of their own.
.venv-bench/made: requirements-bench.lock pyproject.toml
	@echo "· making .venv-bench with what requirements-bench.lock names"
	@rm -rf .venv-bench && $(PYTHON) -m venv .venv-bench
	@.venv-bench/bin/python -m pip install -qq --require-hashes -r requirements-bench.lock
	@.venv-bench/bin/python -m pip install -qq --no-deps --no-build-isolation -e .
	@touch $@
