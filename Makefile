PYTHON ?= python3
TORCH_FLAGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# pip would spend half of its time on compiling every file of torch and scipy: compile what is used.
INSTALL := $(PIP) install -qq --progress-bar off --no-compile
USED := fairseq_cli.train, fairseq_cli.preprocess, fairseq_cli.generate, fairseq_cli.eval_lm, \
	fairseq_cli.interactive, fairseq_cli.validate, fairseq_cli.hydra_train, torch._dynamo, pytest, hypothesis

.DEFAULT_GOAL := help
.PHONY: help venv demo test soak bench lint format clean

help: ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12
	@echo
	@echo 'PYTHON=python3.12   the interpreter of the environment (3.11 or 3.12)'
	@echo 'TORCH_FLAGS=...     more options for the installation of torch, e.g. an index of CPU builds'

venv: $(VENV)/.installed ## make .venv with everything in it

# Two stamps: a change to setup.py installs the package again, not what it needs.
$(VENV)/.requirements: requirements/torch.txt requirements/lock.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 12) or sys.exit( \
	  "make: the pinned requirements are for Python 3.11 and 3.12, not %d.%d: set PYTHON=python3.11" % v)'
	@echo "== $(VENV): $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@echo '== pinned requirements (requirements/lock.txt)'
	@$(INSTALL) --require-hashes --no-deps -r requirements/lock.txt
	@echo '== torch (requirements/torch.txt)'
	@$(INSTALL) $(TORCH_FLAGS) -r requirements/torch.txt
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -W ignore -c 'import $(USED)'
	@touch $@

$(VENV)/.installed: $(VENV)/.requirements setup.py pyproject.toml $(wildcard csrc/*)
	@echo '== fairseq_rum'
	@$(INSTALL) --no-build-isolation --no-deps -e .
	@touch $@

demo: $(VENV)/.installed ## train a small language model and a summarizer: about nine minutes
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/demo.sh
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/summarization/demo.sh

# Two processes of one thread each: with more, the threads of the two wait for each other.
test: lint ## check the style, then run all tests
	@PATH="$(CURDIR)/$(BIN):$$PATH" OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile

# Triton's interpreter runs its kernels on the CPU; its wheel is for Linux and takes 1 GB unpacked.
soak: $(VENV)/.installed ## the slow tests: faults at random, the Triton kernels in an interpreter
	@$(INSTALL) -r requirements/triton.txt
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -q -m soak
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -q tests/test_rum_kernels.py -k triton

bench: $(VENV)/.installed ## measure speed and memory, write benchmarks/RESULTS.md: under ten minutes
	@$(BIN)/python -m benchmarks.kernels

lint: $(VENV)/.installed ## check the style
	@$(BIN)/ruff check -q .
	@$(BIN)/ruff format -q --check . || { echo 'make: run "make format"'; exit 1; }

format: $(VENV)/.installed ## mend the style
	@$(BIN)/ruff check -q --fix . ; $(BIN)/ruff format .

clean: ## remove all that is built, .venv too
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	rm -f fairseq_rum/_C*.so fairseq_rum/_C.not_built.txt
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
