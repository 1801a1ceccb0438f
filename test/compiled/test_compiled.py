"""Virtual time in machine code, as `rfm compile` makes it, decides what it decides interpreted. By `make compiled`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from ros2_rfm_serving import compiled

VISITED = ["config/rosa/p4.yaml", "--robots", "16", "--seconds", "15", "--guests", "per_hour=600,stay_min=0.2,silent=0.3"]
CRASHED = ["config/rosa/p3.yaml", "--robots", "12", "--seconds", "15", "--crash", "server_1@8"]
IMPORTED = """
from importlib import import_module
from ros2_rfm_serving import compiled
assert compiled.use()
print([name for name in compiled.MODULES if not import_module(f"ros2_rfm_serving.{name}").__file__.endswith(compiled.SUFFIX)])
"""


def told(*arguments: str, switch: str = "yes") -> str:
    """What Python prints."""
    command = [sys.executable, *arguments]
    environment = {**os.environ, compiled.SWITCH: switch}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=250).stdout


def observed(switch: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(told("-m", "test.compiled.observed", switch=switch))
    return found


def test_every_module_is_machine_code() -> None:
    assert told("-c", IMPORTED) == "[]\n"


def test_what_can_be_seen_of_factories_is_the_same_after_each_event() -> None:
    by_machine, by_interpreter = observed("yes"), observed("no")
    assert by_machine.pop("compiled") is True and by_interpreter.pop("compiled") is False
    assert len(by_machine) > 5 and by_machine == by_interpreter


def test_a_robot_goes_on_from_its_snapshot() -> None:
    by_machine, by_interpreter = (json.loads(told("-m", "test.compiled.restored", switch=switch)) for switch in ("yes", "no"))
    assert by_machine.pop("compiled") is True and by_interpreter.pop("compiled") is False
    assert by_machine == by_interpreter and by_machine["same"]


def test_a_server_goes_on_from_its_state() -> None:
    by_machine, by_interpreter = (
        json.loads(told("-m", "test.compiled.restored_server", switch=switch)) for switch in ("yes", "no")
    )
    assert by_machine.pop("compiled") is True and by_interpreter.pop("compiled") is False
    assert by_machine == by_interpreter and by_machine["same"] and by_machine["answered"] > 40


@pytest.mark.parametrize("given", [VISITED, CRASHED], ids=["guests", "crash"])
def test_a_simulation_reports_the_same_to_the_last_digit(given: list[str]) -> None:
    command = ("-m", "ros2_rfm_serving.cli", "simulate", *given, "--json")
    report = told(*command)
    assert report == told(*command, switch="no") and json.loads(report)["goodput"] > 0


@pytest.mark.parametrize(("switch", "said"), [("yes", "(compiled)"), ("no", "(interpreted; rfm compile makes it faster)")])
def test_who_simulates_is_told_how(switch: str, said: str) -> None:
    assert said in told("-m", "ros2_rfm_serving.cli", "simulate", CRASHED[0], "--robots", "4", "--seconds", "2", switch=switch)


def test_the_benchmark_says_which_it_has_measured() -> None:
    given = ["bench", "simulation", "config/rosa/p1.yaml", "--robots", "4", "--seconds", "1", "--rounds", "1"]
    assert "virtual time, compiled" in told("-m", "ros2_rfm_serving.cli", *given)
    assert "virtual time, interpreted" in told("-m", "ros2_rfm_serving.cli", *given, switch="no")
