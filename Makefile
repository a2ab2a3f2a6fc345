# Two commands do all their own set-up: `make demo` and `make test`.
# The environment and the lab's images are kept outside the checkout, so that the next time is quick.

SHELL := /bin/bash
PYTHON ?= python3
CACHE ?= $(if $(filter 0,$(shell id -u)),/var/cache/spark-cluster,$(HOME)/.cache/spark-cluster)
KEY := $(shell { cat pyproject.toml; pwd; } | sha256sum | cut -c1-12)
VENV := $(CACHE)/venv-$(KEY)
RUN := $(VENV)/bin/spark-cluster

.PHONY: demo test check pure lab-tests bench env clean help

help:
	@echo "make demo       two simulated Sparks, and 'spark-cluster up --tp 2' on them (root, Linux)"
	@echo "make test       everything: ruff, mypy, pure tests, lab tests (those need root and Linux)"
	@echo "make pure       ruff, mypy and the pure tests only"
	@echo "make bench      the engine against its peers, on the lab"
	@echo "make clean      take the lab down and remove what is cached"

demo: env
	@$(RUN) lab up
	@$(RUN) -i lab trust
	@$(RUN) -i lab up --tp 2
	@echo
	@echo "It stays up. To look around:   .venv/bin/spark-cluster -i lab status"
	@echo "To end it:                     .venv/bin/spark-cluster lab down"

test: pure lab-tests

pure: check
	@$(VENV)/bin/python -m pytest tests -m "not lab" -n auto

lab-tests: env
	@$(VENV)/bin/python -m pytest tests -m lab

check: env
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy

bench: env
	@$(RUN) lab up
	@$(VENV)/bin/python -m benchmarks.engine --tools ours,floor,ansible,mitogen,pyinfra

env: $(VENV)/ready

$(VENV)/ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) -V). Give another: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "python3-venv is missing: installing it"; apt-get update -qq && apt-get install -y -qq python3-venv; }
	@echo "making the environment in $(VENV)"
	@rm -rf $(VENV) && mkdir -p $(CACHE) && $(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/pip install -qq --disable-pip-version-check -e '.[dev]'
	@ln -sfn $(VENV) .venv
	@touch $@

clean:
	@if [ -x $(RUN) ]; then $(RUN) lab down --wipe; fi
	@rm -rf $(VENV) .venv $(CACHE)/lab
