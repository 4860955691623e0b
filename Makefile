# What a newcomer, a contributor and CI type; `make help` lists it.
#
# Every target sets up what it needs in .venv, once: a stamp named after the digest of the lock
# files says that an environment is complete, so a second call costs nothing and needs no network.
# Running `fasttrack` by hand afterwards: .venv/bin/fasttrack.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3.11
# What the kernel compiler runs under; the first one that is a Python 3.12 is taken.
CUTE_PYTHON ?= python3.12 $(wildcard $(HOME)/.pyenv/versions/3.12.*/bin/python3.12)
# Extra words for every pip call, e.g. PIP_ARGS="--proxy ..."
PIP_ARGS ?=
# Where the CPU build of torch comes from, if pip does not find it by itself: an index URL.
TORCH_INDEX ?=
# For `make lock`: the folder that holds torch's CPU wheel.
TORCH_WHEELS ?= $(firstword $(PIP_FIND_LINKS))
# For `make validate`.
TARGET ?= cpu-nano
TIER ?= smoke
ARGS ?=
# For `make test`, e.g. PYTEST_ARGS='-m "not slow" tests/unit'
PYTEST_ARGS ?=
# Tests use one thread each; a file's tests share what it set up. `WORKERS=` for one process.
WORKERS ?= -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

VENV := .venv
BIN := $(VENV)/bin
CACHE := .cache
LOG := $(CACHE)/setup.log
OPTIMIZATION := optimizations/kimi_k3
CHECKPOINT := $(CACHE)/checkpoints/k3-nano

CUTE_VENV := .venv-cute
CUTE_LOCK := requirements/cute-linux-x86_64.txt
BUILD_LOCK := requirements/build.txt
ENGINE_LOCK := requirements/cpu-linux-x86_64.txt
DEV_LOCK := requirements/dev.txt
PROJECTS := pyproject.toml $(OPTIMIZATION)/pyproject.toml
CHECKPOINT_SOURCES := $(wildcard $(addprefix $(OPTIMIZATION)/,checkpoint.py tokenizer.py presets.py \
	dims.py weights/k3-nano/weights.safetensors))

# The folder is part of the key: an environment that was moved is not usable.
digest = $(shell { pwd; cat $(1); } | sha256sum | cut -c-16)
ENGINE_READY := $(VENV)/.engine-$(call digest,$(BUILD_LOCK) $(ENGINE_LOCK))
DEV_READY := $(VENV)/.dev-$(call digest,$(DEV_LOCK))
PROJECTS_READY := $(VENV)/.projects-$(call digest,$(PROJECTS))
CUTE_READY := $(CUTE_VENV)/.ready-$(call digest,$(CUTE_LOCK))
CHECKPOINT_READY := $(CACHE)/checkpoints/.k3-nano-$(call digest,$(CHECKPOINT_SOURCES))

INSTALL = $(BIN)/python -m pip install --progress-bar off --no-compile --no-deps $(PIP_ARGS)
LOCKED = $(INSTALL) --require-hashes --no-build-isolation
log_tail = tail -n 12 $(LOG) | cut -c -400 >&2
# Silent unless it fails; then the end of the log, where pip says why.
LOGGED = >> $(LOG) 2>&1 || { $(log_tail); $(call stop,set-up failed (see $(LOG))); }
# Ends a recipe with one line on stderr. The message may hold no comma.
stop = echo "make: $(1)" >&2; exit 1
# pip would do this too, on one core only. Some packages ship files that are not Python 3.11.
COMPILE = $(BIN)/python -m compileall -q -j 0 $(VENV)/lib >> $(LOG) 2>&1 || true

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where the audit of compiled kernels finds its compiler, unless the caller knows better.
export FASTTRACK_CUTE_PYTHON ?= $(CURDIR)/$(CUTE_VENV)/bin/python
# Children start over and over; without this they would compile our own modules each time.
unexport PYTHONDONTWRITEBYTECODE

# Two pip runs in one environment would get in each other's way.
.NOTPARALLEL:
.PHONY: help validate kernels cute test lint setup golden docs lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

validate: $(CHECKPOINT_READY) kernels cute ## the bundled Kimi K3 decode through every stage
	@$(BIN)/fasttrack validate $(OPTIMIZATION) --target $(TARGET) --tier $(TIER) \
		--cache $(CACHE) $(ARGS)

kernels: $(PROJECTS_READY) ## compile the kernels of the bundled optimization; what is compiled is kept
	@echo "make: compiling kernels unless they are cached: up to three minutes" >&2
	@$(BIN)/python -m kimi_k3.cases

cute: ## .venv-cute: CuTe DSL and nvdisasm, which compile and audit GPU kernels without a GPU
	@[ -e $(CUTE_READY) ] || for python in $(CUTE_PYTHON); do \
		$$python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2> /dev/null || continue; \
		exec $(MAKE) --no-print-directory CUTE_PYTHON=$$python $(CUTE_READY); \
	done; [ -e $(CUTE_READY) ] || echo "make: no Python 3.12 here (CUTE_PYTHON=...): no GPU kernel" \
		"will be compiled and audited" >&2

test: lint $(CHECKPOINT_READY) kernels cute ## lint, then every test
	$(BIN)/python -m pytest $(WORKERS) --durations=15 $(PYTEST_ARGS)

lint: setup ## ruff and mypy
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy

setup: $(PROJECTS_READY) $(DEV_READY) ## .venv with the engine, both distributions and the tools

golden: setup ## rebuild the golden files; review what changed
	$(BIN)/python tests/golden/build.py
	@git status --short tests/golden

docs: setup ## rebuild the generated pages
	$(BIN)/python docs/build.py
	@git status --short docs README.md

lock: setup ## rewrite requirements/*.txt; every pin may move with ARGS=--upgrade
	@[ -n "$(TORCH_WHEELS)" ] || { $(call stop,TORCH_WHEELS=FOLDER must hold torch's CPU wheel); }
	$(BIN)/python requirements/lock.py --torch-wheels $(TORCH_WHEELS) $(ARGS)

clean: ## remove the environment, caches and generated checkpoints
	rm -rf $(VENV) $(CUTE_VENV) $(CACHE) build dist *.egg-info $(OPTIMIZATION)/*.egg-info
	find fasttrack optimizations tests requirements -name __pycache__ -prune -exec rm -rf {} +

$(ENGINE_READY):
	@command -v $(PYTHON) > /dev/null || { $(call stop,no $(PYTHON) here: name one with PYTHON=...); }
	@$(PYTHON) -c 'import sys, sysconfig as s; \
		sys.exit((*sys.version_info[:2], s.get_platform()) != (3, 11, "linux-x86_64"))' || \
		{ $(call stop,$(ENGINE_LOCK) needs CPython 3.11 on x86-64 Linux: see README.md); }
	@echo "make: setting up $(VENV): 190 packages, 3 GB, some minutes (log: $(LOG))" >&2
	@rm -rf $(VENV)
	@mkdir -p $(CACHE)
	@: > $(LOG)
	@$(PYTHON) -m venv $(VENV) $(LOGGED)
	@$(LOCKED) -r $(BUILD_LOCK) $(LOGGED)
	@grep '^torch==' $(ENGINE_LOCK) > $(CACHE)/torch.txt
	@$(LOCKED) $(addprefix --extra-index-url ,$(TORCH_INDEX)) -r $(CACHE)/torch.txt >> $(LOG) 2>&1 || \
		{ $(log_tail); \
		echo "make: pip cannot get $$(cut -d' ' -f1 $(CACHE)/torch.txt) here. CPU builds of torch" >&2; \
		echo "make: are not on the package index but on PyTorch's own CPU wheel index:" >&2; \
		$(call stop,give its URL as in \"make TORCH_INDEX=URL $(MAKECMDGOALS)\"); }
	@$(LOCKED) -r $(ENGINE_LOCK) $(LOGGED)
	@$(COMPILE)
	@touch $@

$(DEV_READY): | $(ENGINE_READY)
	@$(LOCKED) -r $(DEV_LOCK) $(LOGGED)
	@$(COMPILE)
	@rm -f $(VENV)/.dev-* && touch $@

$(PROJECTS_READY): | $(ENGINE_READY)
	@$(INSTALL) --no-build-isolation -e . -e $(OPTIMIZATION) $(LOGGED)
	@rm -f $(VENV)/.projects-* && touch $@

$(CUTE_READY):
	@echo "make: setting up $(CUTE_VENV): 10 packages, 500 MB (log: $(CACHE)/cute.log)" >&2
	@rm -rf $(CUTE_VENV)
	@mkdir -p $(CACHE)
	@{ $(CUTE_PYTHON) -m venv $(CUTE_VENV) && $(CUTE_VENV)/bin/python -m pip install --progress-bar off \
		--no-compile --no-deps $(PIP_ARGS) --require-hashes -r $(CUTE_LOCK); } > $(CACHE)/cute.log 2>&1 || \
		{ tail -n 12 $(CACHE)/cute.log | cut -c -400 >&2; $(call stop,no kernel compiler (see $(CACHE)/cute.log)); }
	@touch $@

$(CHECKPOINT_READY): | $(PROJECTS_READY)
	@rm -rf $(CHECKPOINT) $(@D)/.k3-nano-*
	@mkdir -p $(@D)
	@$(BIN)/python -m kimi_k3.checkpoint k3-nano $(CHECKPOINT) $(LOGGED)
	@touch $@
