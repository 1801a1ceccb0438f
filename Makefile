# make run [SECONDS=60] [FACTORY=file]: environment, build, factory.   make test: everything that CI runs.
PYTHON ?= python3
VENV ?= .venv
ENGINES ?= .venv-engines
SECONDS ?= 0
FUZZ_SECONDS ?= 240
SHIFT_SECONDS ?= 600
FACTORY ?= config/factory_quickstart.yaml
BIN := $(VENV)/bin
SOURCES := $(shell find msg srv action launch config models ros2_rfm_serving cmake -type f -not -path '*/demonstrations/*' -not -name '*.pyc') \
  CMakeLists.txt package.xml pyproject.toml setup.cfg

.PHONY: run test one-core install lint unit thorough ros system colcon engines wheel wheel-test operate shift fuzz mutants optimum audit doctor bench clean

run: install
	$(BIN)/rfm up $(FACTORY) --seconds $(SECONDS)

# Two cores: first what keeps one busy, in pairs, each part's output in one piece when it is done; then what wants both.
test:
	$(MAKE) --no-print-directory -j 2 --output-sync=target --keep-going one-core
	$(MAKE) --no-print-directory --keep-going unit ros system

one-core: colcon engines lint

install: $(VENV)/.installed

lint: install
	$(BIN)/ruff check ros2_rfm_serving test launch
	$(BIN)/ruff format --check ros2_rfm_serving test launch
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: install
	$(BIN)/python -m pytest test/unit -q -n 2 --dist worksteal --durations 5

# What `unit` and `system` draw or try some of, as often as the documents say: some four minutes of one core.
thorough: install
	RFM_TRIED_FACTORIES=200 $(BIN)/python -m pytest test/unit/scheduler/test_scheduler.py -q -k optimum
	RFM_PIPELINED_EVENTS=100000 $(BIN)/python -m pytest test/unit/robot/test_robot_machine.py -q -k pipelined
	$(BIN)/python -m pytest test/ros test/system -q -m thorough

# Most of a test is waiting: for discovery, leases, timeouts. Each has a ROS domain of its own.
ros: install
	$(BIN)/python -m pytest test/ros -q -n 4 -m "not thorough" --dist worksteal --durations 5

# Side by side, each test in a ROS domain of its own; then, one after the other, those that would starve beside another.
system: install
	$(BIN)/python -m pytest test/system -q -n 3 --dist worksteal -m "not alone and not thorough" --durations 5
	$(BIN)/python -m pytest test/system -q -m "alone and not thorough" --durations 5

colcon: install
	scripts/colcon_build $(BIN)/python

# LeRobot, JAX and llama.cpp's server, as the extras bring them, in an environment on top of the first.
engines: $(ENGINES)/.installed
	$(ENGINES)/bin/python -m pytest -q --confcutdir=test/engines test/engines

# After `install`: two pips at once would see each other half done.
$(ENGINES)/.installed: $(VENV)/.dependencies scripts/engines_venv scripts/requirements.py test/engines/requirements.txt | install
	scripts/engines_venv $(ENGINES) $(VENV)
	touch $@

# What was installed, for other computers, in dist/: named after the systems that it runs on.
wheel: install $(VENV)/.wheel_tools
	rm -rf dist
	scripts/wheel $(BIN)/python $(VENV)/wheel/*.whl dist

# On a computer without a compiler and without anything of this project.
wheel-test: wheel
	$(BIN)/python scripts/wheel_test dist/*.whl constraints.txt

$(VENV)/.wheel_tools: $(VENV)/.dependencies
	$(BIN)/python scripts/requirements.py pyproject.toml wheel > $(VENV)/requirements_wheel.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r $(VENV)/requirements_wheel.txt
	touch $@

# A running factory as Debian's Prometheus and Chromium see it, which lie in build/ if none is installed.
operate: install
	scripts/prometheus build/prometheus
	scripts/chromium build/chromium
	PROMETHEUS_BIN=build/prometheus/usr/bin CHROMIUM_BIN=build/chromium $(BIN)/python -m pytest -q test/operate

# Recorded, while a server is killed, a robot is paused and a network is cut; then verified, explained, replayed, exported. The
# commands are the installed ones.
shift: install $(ENGINES)/.installed
	$(BIN)/python -m test.shift $(SHIFT_SECONDS) --rfm $(BIN)/rfm --lerobot $(ENGINES)/bin/python

# Coverage-guided, FUZZ_SECONDS in all. What it keeps is in build/fuzz.
fuzz: install $(VENV)/.fuzz
	VENV=$(VENV) scripts/fuzz $(FUZZ_SECONDS)

$(VENV)/.fuzz: $(VENV)/.dependencies
	$(BIN)/python scripts/requirements.py pyproject.toml fuzz > $(VENV)/requirements_fuzz.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r $(VENV)/requirements_fuzz.txt
	touch $@

# Faults in the brain and the server, one at a time: a test must notice each. Some five minutes.
mutants: install
	$(BIN)/python -m test.mutants

# Plans of 300 random factories of eight GPUs, against the exact optimum of each, and of 100 against ROSA without a budget. Some
# fifteen minutes of one core.
optimum: install
	$(BIN)/python -m test.optimum
	$(BIN)/python -m test.optimum.rivals

# Known vulnerabilities and licences of all that an installation brings. pip-audit lies in an environment of its own.
audit: install
	test -x build/audit/bin/pip-audit || { $(PYTHON) -m venv build/audit && build/audit/bin/pip install -q --disable-pip-version-check 'pip-audit>=2.7'; }
	$(BIN)/python scripts/audit.py pyproject.toml build/audit/bin/pip-audit

doctor: install
	$(BIN)/rfm doctor

bench: install
	$(BIN)/rfm bench path
	$(BIN)/rfm bench policy

$(VENV)/.dependencies: pyproject.toml constraints.txt scripts/system_packages
	scripts/system_packages
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python scripts/requirements.py pyproject.toml torch metaworld plots metrics foxglove dashboard audit zenoh security dev build > $(VENV)/requirements.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r $(VENV)/requirements.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps openpi-client==0.1.2  # pins numpy<2, and works with 2
	touch $@

# Both halves of a plain `pip install .`, isolated build and all: what a user without make types.
$(VENV)/.wheel: $(VENV)/.dependencies $(SOURCES)
	rm -rf $(VENV)/wheel
	$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps --wheel-dir $(VENV)/wheel .
	touch $@

$(VENV)/.installed: $(VENV)/.wheel
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --force-reinstall $(VENV)/wheel/*.whl
	touch $@

clean:
	rm -rf $(VENV) $(ENGINES) build dist install log logs .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
