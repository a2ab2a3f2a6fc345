# Two commands do all their own set-up: `make demo` and `make test`.
# The environment and the lab's images are kept outside the checkout, so that the next time is quick.

SHELL := /bin/bash
PYTHON ?= python3
# Hundreds of short processes import the same modules: they are compiled once.
unexport PYTHONDONTWRITEBYTECODE
CACHE ?= $(if $(filter 0,$(shell id -u)),/var/cache/spark-cluster,$(HOME)/.cache/spark-cluster)
LAB := packages/spark-cluster-lab
KEY := $(shell { cat pyproject.toml $(LAB)/pyproject.toml; pwd; } | sha256sum | cut -c1-12)
VENV := $(CACHE)/venv-$(KEY)
RUN := $(VENV)/bin/spark-cluster
# One line a package, so that a first installation is not a silent minute.
SHOW_PACKAGES = sed -un -e 's/^Collecting \([A-Za-z0-9._-]*\).*/  fetching \1/p' -e 's/^Installing .*/  installing them/p'
PIP = $(VENV)/bin/pip install --disable-pip-version-check --progress-bar off
PYTEST := $(VENV)/bin/python -m pytest tests
SLOWEST := --durations=10 --durations-min=1
# Many tests wait for a process or a limit: three for each core.
WORKERS := -n $(shell echo $$((3 * $$(nproc 2>/dev/null || echo 2))))
# What hangs in C code does not see the tests' own limit: the worker is ended, the others go on.
HANGS := -o faulthandler_timeout=400 -o faulthandler_exit_on_timeout=true
# A test waits for its nodes most of the time: two labs, each with the tests of one file at a time.
LABS ?= 2
# A worker that has crashed is not replaced: its lab is in an unknown state, and the others report.
SHARED := $(if $(filter-out 1,$(LABS)),-n $(LABS) --dist loadfile --no-loadscope-reorder --max-worker-restart=0)
NONE_IS_FINE := || test $$? = 5
BENCH ?= --tools ours,floor,ansible,mitogen,pyinfra

.PHONY: demo demo-bench test check unit pure lab-tests gpu soak bench figures docs env tools clean help

help:
	@echo "make demo       two simulated Sparks, and 'spark-cluster up --tp 2' on them (root, Linux)"
	@echo "make demo-bench a benchmark of one and of two simulated Sparks, and its report"
	@echo "make test       everything: ruff, mypy, pure tests, lab tests (those need root and Linux)"
	@echo "make unit       the tests that start no process: under a minute, for every save"
	@echo "make pure       ruff, mypy and the pure tests only"
	@echo "make gpu        the main job on a real NVIDIA GPU of this machine (docs/gpu.md)"
	@echo "make soak       the long campaigns: thousands of examples, hundreds of kills (hours)"
	@echo "make bench      spark-cluster against Ansible, Mitogen and pyinfra, on the lab"
	@echo "make figures    seconds of commands and of a play on the lab, next to their floors"
	@echo "make docs       the documentation as a site, in site/; a broken link fails"
	@echo "make clean      take the lab down and remove what is cached"

demo: $(VENV)/ready
	@$(RUN) lab up
	@$(RUN) -i lab trust
	@$(RUN) -i lab up --tp 2
	@echo
	@echo "It stays up. Here, spark-cluster is .venv/bin/spark-cluster; to end the lab:"
	@echo "  .venv/bin/spark-cluster lab down"

# The report needs the extra `bench`, which the environment of the tests has.
demo-bench: env
	@$(RUN) lab up
	@$(RUN) -i lab trust
	@rm -rf bench-results/demo
	@$(RUN) -i lab bench run lab --out bench-results/demo
	@$(RUN) bench report bench-results/demo

test: pure lab-tests

pure: check tools
	@$(PYTEST) -m "not lab and not soak and not gpu" $(WORKERS) $(SLOWEST) $(HANGS)

unit: env
	@$(PYTEST)/unit -n auto

lab-tests: env tools
	@$(PYTEST)/lab -m "lab and not soak" $(SHARED) $(SLOWEST)

gpu: env
	@$(PYTEST)/gpu -m gpu -v $(SLOWEST) $(NONE_IS_FINE)

soak: env tools
	@$(PYTEST) -m "hypothesis and not lab and not soak" --hypothesis-profile=soak $(WORKERS)
	@$(PYTEST) -m "soak and not lab" -v -s $(NONE_IS_FINE)
	@$(PYTEST)/lab -m "soak and lab" -v $(SHARED) $(NONE_IS_FINE)

check: env
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy

bench: env
	@$(RUN) lab up
	@$(VENV)/bin/python -m benchmarks.engine $(BENCH)

# Seconds of whole commands, and of the play of 50 resources next to a bare loop over paramiko.
figures: env
	@$(RUN) lab up
	@$(RUN) -i lab trust
	@$(VENV)/bin/python -m benchmarks.commands
	@$(VENV)/bin/python -m benchmarks.engine --tools ours,floor --nodes 2 --runs 7

# The warning is about the next major version of mkdocs, which the extra `docs` excludes.
docs: $(VENV)/ready-for-docs
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --clean
	@echo "site/index.html; with the search: python3 -m http.server -d site"

env: $(VENV)/ready-for-tests

# What the tests call and a fresh machine lacks (sshd, which is neither started nor enabled).
tools: $(VENV)/ready
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then $(RUN) lab tools --tests; fi

$(VENV)/ready: pyproject.toml $(LAB)/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) -V). Give another: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "python3-venv is missing: installing it"; apt-get update -qq && apt-get install -y -qq python3-venv; }
	@echo "making the Python environment in $(VENV) (about half a minute)"
	@rm -rf $(VENV) && mkdir -p $(CACHE) && $(PYTHON) -m venv $(VENV)
	@set -o pipefail; $(PIP) -e . -e $(LAB) | $(SHOW_PACKAGES)
	@ln -sfn $(VENV) .venv
	@touch $@

$(VENV)/ready-for-tests: $(VENV)/ready
	@echo "adding what the tests need to the Python environment"
	@set -o pipefail; $(PIP) -e '.[dev]' -e $(LAB) | $(SHOW_PACKAGES)
	@touch $@

$(VENV)/ready-for-docs: $(VENV)/ready
	@echo "adding what the documentation needs to the Python environment"
	@set -o pipefail; $(PIP) -e '.[docs]' -e $(LAB) | $(SHOW_PACKAGES)
	@touch $@

clean:
	@if [ -x $(RUN) ]; then $(RUN) lab down --wipe; fi
	@rm -rf $(VENV) .venv
	@if [ -d $(CACHE)/lab ]; then rm -rf --one-file-system $(CACHE)/lab; fi
