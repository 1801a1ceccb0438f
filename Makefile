# make run [SECONDS=60] [FACTORY=file]: environment, build, factory.   make test: everything that CI runs.
PYTHON ?= python3
VENV ?= .venv
ENGINES ?= .venv-engines
SECONDS ?= 0
FUZZ_SECONDS ?= 240
FACTORY ?= config/factory_quickstart.yaml
BIN := $(VENV)/bin
SOURCES := $(shell find msg srv action launch config models ros2_rfm_serving cmake -type f -not -path '*/demonstrations/*' -not -name '*.pyc') \
  CMakeLists.txt package.xml pyproject.toml setup.cfg

.PHONY: run test install lint unit ros system colcon engines fuzz doctor bench clean

run: install
	$(BIN)/rfm up $(FACTORY) --seconds $(SECONDS)

test: lint unit ros system colcon

install: $(VENV)/.installed

lint: install
	$(BIN)/ruff check ros2_rfm_serving test launch
	$(BIN)/ruff format --check ros2_rfm_serving test launch
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: install
	$(BIN)/python -m pytest test/unit -q -n 2

ros: install
	$(BIN)/python -m pytest test/ros -q -n 2

# One after the other: two factories at once on two cores would starve each other.
system: install
	$(BIN)/python -m pytest test/system -q

colcon: install
	scripts/colcon_build $(BIN)/python

# LeRobot, JAX and llama.cpp, in an environment of their own. pi0 and pi0.5 need another transformers than the other policies.
engines: $(ENGINES)/.installed
	$(ENGINES)/bin/python -m pytest -q --confcutdir=test/engines test/engines
	PYTHONPATH=$(ENGINES)/pi $(ENGINES)/bin/python -m pytest -q --confcutdir=test/engines test/engines/test_lerobot.py test/engines/test_lerobot_refusals.py

$(ENGINES)/.installed: scripts/engines_venv test/engines/requirements.txt constraints.txt
	PYTHON=$(PYTHON) scripts/engines_venv $(ENGINES)
	touch $@

# Coverage-guided, FUZZ_SECONDS in all. What it keeps is in build/fuzz.
fuzz: install $(VENV)/.fuzz
	VENV=$(VENV) scripts/fuzz $(FUZZ_SECONDS)

$(VENV)/.fuzz: $(VENV)/.dependencies
	$(BIN)/python scripts/requirements.py pyproject.toml fuzz > $(VENV)/requirements_fuzz.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r $(VENV)/requirements_fuzz.txt
	touch $@

doctor: install
	$(BIN)/rfm doctor

bench: install
	$(BIN)/rfm bench path
	$(BIN)/rfm bench policy

$(VENV)/.dependencies: pyproject.toml constraints.txt scripts/system_packages
	scripts/system_packages
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python scripts/requirements.py pyproject.toml torch metaworld plots dev build > $(VENV)/requirements.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r $(VENV)/requirements.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps openpi-client==0.1.2  # pins numpy<2, and works with 2
	touch $@

# A plain `pip install .`, isolated build and all: what a user without make types.
$(VENV)/.installed: $(VENV)/.dependencies $(SOURCES)
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --force-reinstall .
	touch $@

clean:
	rm -rf $(VENV) $(ENGINES) build install log logs
