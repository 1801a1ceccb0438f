# make run [SECONDS=60] [FACTORY=file]: environment, build, factory.   make test: everything that CI runs.
PYTHON ?= python3
VENV ?= .venv
ENGINES ?= .venv-engines
GPU ?= .venv-gpu
VLLM ?= .venv-vllm
DEVICE ?= auto
GPU_OUT ?= build/gpu
UNIT ?= test/unit
SECONDS ?= 0
FUZZ_SECONDS ?= 240
SHIFT_SECONDS ?= 600
RECORDED_SECONDS ?= 600
SOAK_SECONDS ?= 3600
SOAK_SEED ?= -1
FACTORY ?= config/factory_quickstart.yaml
BIN := $(VENV)/bin
PIP = $(BIN)/python -m pip --quiet --disable-pip-version-check
SOURCES := $(shell find msg srv action launch config models ros2_rfm_serving cmake -type f -not -path '*/demonstrations/*' -not -name '*.pyc') \
  CMakeLists.txt package.xml pyproject.toml setup.cfg

# Kept, whatever the caller's environment says: `test` starts hundreds of processes, and each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

# Parts of `test` say when they begin and end, from when it began.
PART = scripts/part $@
ifndef PARTS_BEGAN_S
export PARTS_BEGAN_S := $(shell date +%s)
endif

.PHONY: run test install lint unit thorough ros system colcon docs engines compiled compiled-rooms gpu gpu-dry-run wheel wheel-test ray operate shift recorded-faults soak soak-short soak-ci foreground in-turn background strangers beside alone patient fuzz mutants optimum audit doctor house bench clean

run: install
	$(BIN)/rfm up $(FACTORY) --seconds $(SECONDS)

# For two cores; each part's output comes in one piece when it is done. What computes runs at a low priority from the beginning. Beside
# it run what keeps one core busy, then what mostly waits, with five minutes of faults beside it. What would starve beside anything
# that takes a core runs last, alone.
test:
	rm -f build/parts
	$(MAKE) --no-print-directory install
	$(MAKE) --no-print-directory -j 2 --output-sync=target --keep-going foreground background
	$(MAKE) --no-print-directory -j 1 alone

foreground:
	$(MAKE) --no-print-directory -j 2 --output-sync=target --keep-going colcon lint docs
	$(MAKE) --no-print-directory -j 2 --output-sync=target --keep-going in-turn soak-ci

in-turn: install
	$(MAKE) --no-print-directory -j 1 --output-sync=none --keep-going ros strangers beside

background: install
	nice -n 10 $(MAKE) --no-print-directory -j 2 --output-sync=none --keep-going unit compiled UNIT="test/unit --ignore=test/unit/security"

lint: install
	$(BIN)/ruff check ros2_rfm_serving lab test launch
	$(BIN)/ruff format --check ros2_rfm_serving lab test launch
	$(PART) $(BIN)/mypy
	$(BIN)/lint-imports

# The documentation site. A broken link or anchor, a page outside the navigation, and a name of docs/reference/python.md that does not
# exist fail it. It reads the sources, and imports none of them.
docs: $(VENV)/.dependencies
	$(PART) env NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "The documentation site is in build/site: open build/site/index.html"

unit: install
	$(PART) $(BIN)/python -m pytest $(UNIT) -q -n 2 -m "not thorough and not patient" --dist worksteal --durations 5

# Of those, floods and crowds at a door: what they may cost others is judged by the clock, so never at a low priority.
strangers: install
	$(PART) $(BIN)/python -m pytest test/unit/security -q -n 2 -m "not thorough"

# What computes for long: some five minutes of one core, and no part of `test`.
patient: install
	$(BIN)/python -m pytest test/unit -q -m "patient and not thorough" --timeout 1500 --durations 5

# What `unit` and `system` draw or try some of, as often as the documents say: some five minutes of one core.
thorough: install
	RFM_TRIED_FACTORIES=200 $(BIN)/python -m pytest test/unit/scheduler/test_scheduler.py -q -k optimum
	RFM_DRAWN_FACTORIES=500 RFM_DRAWN_KINDS=serves,virtual_time,order,monotonic $(BIN)/python -m pytest test/unit/scheduler/test_drawn_factories.py -q --timeout 3600
	RFM_GUEST_EXAMPLES=100 $(BIN)/python -m pytest test/unit/simulation/test_guests.py -q -k every_promise
	RFM_PIPELINED_EVENTS=100000 $(BIN)/python -m pytest test/unit/robot/test_robot_machine.py -q -k pipelined
	$(BIN)/python -m pytest test/unit/security test/ros test/system -q -m thorough

# Most of a test is waiting: for discovery, leases, timeouts. Each has a ROS domain of its own.
ros: install
	$(PART) $(BIN)/python -m pytest test/ros -q -n 4 -m "not thorough" --dist worksteal --durations 5

# Side by side, each test in a ROS domain of its own; then, one after the other, those that would starve beside another.
system: install
	$(MAKE) --no-print-directory -j 1 beside alone

beside: install
	$(PART) $(BIN)/python -m pytest test/system -q -n 3 --dist worksteal -m "not alone and not thorough" --durations 5

alone: install
	$(PART) $(BIN)/python -m pytest test/system -q -m "alone and not thorough" --durations 5

colcon: install
	$(PART) scripts/colcon_build $(BIN)/python

# Virtual time in machine code decides as it does interpreted, by what can be seen of whole factories.
compiled: export XDG_CACHE_HOME = $(CURDIR)/build
compiled: install
	$(BIN)/rfm compile
	$(PART) $(BIN)/python -m pytest -q test/compiled

# And the tests of the rooms themselves, on machine code: some four minutes.
compiled-rooms: export XDG_CACHE_HOME = $(CURDIR)/build
compiled-rooms: compiled
	RFM_COMPILED=yes $(BIN)/python -m pytest -q -n 2 -m "not interpreted" test/unit/robot test/unit/server test/unit/simulation

# LeRobot, JAX and llama.cpp's server, as the extras bring them, in an environment on top of the first, whose ROS libraries it finds so.
engines: $(ENGINES)/.installed
	LD_LIBRARY_PATH="$$($(BIN)/python -c 'import os; print(os.environ["LD_LIBRARY_PATH"])')" AMENT_PREFIX_PATH="$(VENV)" \
	  $(ENGINES)/bin/python -m pytest -q --confcutdir=test/engines test/engines

# After `install`: two pips at once would see each other half done.
$(ENGINES)/.installed: $(VENV)/.dependencies scripts/engines_venv scripts/requirements.py test/engines/requirements.txt | install
	scripts/engines_venv $(ENGINES) $(VENV)
	touch $@

# All that a machine with an NVIDIA GPU is asked, with nothing else prepared: docs/gpu.md. In pieces under ten minutes; stopped at any
# time, it goes on where it was. DEVICE=cpu: at toy size, to see that it runs.
gpu: $(GPU)/.installed $(if $(filter cpu,$(DEVICE)),,$(VLLM)/.tried)
	$(GPU)/bin/python -m ros2_rfm_serving.cli bench gpu --device $(DEVICE) --out $(GPU_OUT)$(if $(filter cpu,$(DEVICE)),/cpu) \
	  --vllm-python "$$(test -f $(VLLM)/.installed && echo $(VLLM)/bin/python)"

# The borrowed machine of docs/gpu.md, rebuilt here: its packages, a clean clone, a run that is killed, and one that goes on elsewhere.
# PyTorch for CUDA is some gigabytes.
gpu-dry-run:
	$(PYTHON) scripts/gpu_dry_run.py $(GPU_OUT)/dry-run

$(GPU)/.installed: pyproject.toml constraints.txt scripts/gpu_venv scripts/requirements.py
	PYTHON=$(PYTHON) scripts/gpu_venv $(GPU)
	touch $@

# Where it cannot be had, the tests that need it are skipped and say so.
$(VLLM)/.tried: pyproject.toml scripts/gpu_venv
	-PYTHON=$(PYTHON) scripts/gpu_venv $(VLLM) vllm && touch $(VLLM)/.installed
	mkdir -p $(VLLM) && touch $@

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

# Scheduler and servers on a real Ray cluster of three nodes, which are killed. Ray is no part of `install`; some four minutes.
ray: install $(VENV)/.ray
	$(BIN)/python -m pytest -q test/ray

$(VENV)/.ray: $(VENV)/.dependencies
	$(BIN)/python scripts/requirements.py pyproject.toml ray > $(VENV)/requirements_ray.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -r $(VENV)/requirements_ray.txt
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

# A recording of RECORDED_SECONDS while servers, the scheduler, robots and the recorder are killed and the disk is full (for that the
# test has to be root, as it mounts a small disk), compared with what was true. Exit code 1: they differ.
recorded-faults: install
	$(BIN)/python -m test.recorded_faults $(RECORDED_SECONDS) --rfm $(BIN)/rfm

# A factory under kills, cuts, steps of the clock, full disks and slow robots, drawn from SOAK_SEED (-1: any), for SOAK_SECONDS; then
# its memory and files must have been flat, every guarantee of docs/safety.md kept, and every request accounted for.
soak: install
	$(BIN)/python -m test.soak $(SOAK_SECONDS) --seed $(SOAK_SEED) --rfm $(BIN)/rfm

# The same for five minutes.
soak-short: install
	$(BIN)/python -m test.soak 300 --seed $(SOAK_SEED) --rfm $(BIN)/rfm

# The same for five minutes with arms that cost next to nothing, beside other tests: its domain is none of theirs. Always the same
# faults: both servers, the scheduler, a robot and an arm are killed, and a network, a clock and a disk fail.
soak-ci: install
	$(PART) $(BIN)/python -m test.soak 300 --seed 3366 --factory test/soak/still_arms.yaml --domain 101 --rfm $(BIN)/rfm

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

# Names, docstrings and sizes beside their targets. Nothing is installed for it; it needs PyYAML.
house:
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m test.language

doctor: install
	$(BIN)/rfm doctor

bench: install
	$(BIN)/rfm bench path
	$(BIN)/rfm bench policy

# `make -j 2`: what is downloaded and what is compiled do not wait for each other. Bytecode is made of what is imported.
install: $(VENV)/.installed

$(VENV)/.python: scripts/system_packages
	scripts/system_packages
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.dependencies: pyproject.toml constraints.txt $(VENV)/.python
	$(PIP) install --no-compile -c constraints.txt torch
	$(BIN)/python scripts/requirements.py pyproject.toml torch metaworld plots metrics foxglove dashboard audit zenoh security dev docs build > $(VENV)/requirements.txt
	$(PIP) install --no-compile -c constraints.txt -r $(VENV)/requirements.txt
	$(PIP) install --no-compile --no-deps openpi-client==0.1.2  # pins numpy<2, and works with 2
	touch $@

# Both halves of a plain `pip install .`, isolated build and all: what a user without make types.
$(VENV)/.wheel: $(VENV)/.python $(SOURCES)
	rm -rf $(VENV)/wheel
	$(PIP) wheel --no-deps --wheel-dir $(VENV)/wheel .
	touch $@

$(VENV)/.installed: $(VENV)/.dependencies $(VENV)/.wheel
	scripts/part install $(PIP) install --no-deps --force-reinstall $(VENV)/wheel/*.whl
	touch $@

clean:
	rm -rf $(VENV) $(ENGINES) $(GPU) $(VLLM) build dist install log logs .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
