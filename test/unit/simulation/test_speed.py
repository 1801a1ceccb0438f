"""Virtual time is fast because little is done per request, and what is decided stays what it was."""

from __future__ import annotations

import gc
import json

import pytest
from typer.testing import CliRunner

from lab.benchmarks.simulation import counting
from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.simulation import simulate
from test.unit.simulation.decisions import KEPT, digests
from test.unit.simulation.simulated import factory, models, schedule

CALLS = {"sync": 367, "async": 655}
"""Of functions, per request: 706 and 1,320 before anybody counted them, 467 and 858 until records went unchecked at run time, 387
and 684 until what stays frozen was made at once. Two are of decisions that servers and planners share (`types/batch_wait.py`), and
two of another mix: requests of safety come no later where servers are busy."""


def counted(num_robots: int, mode: str, seconds: float) -> tuple[int, int]:
    """Calls of functions, and requests."""
    plant = factory(num_robots, plans=0.1, safety=True, mode=mode)
    plan = schedule(plant, batch_size=8)
    with counting() as calls:
        report = simulate(plan, plant, models(0.1), seconds=seconds, warm_up_s=1.0, seed=1)
    return sum(calls.values()), report.counters.sent


def calls_per_request(num_robots: int, mode: str) -> float:
    """What it takes to make the factory is in both runs, and so in no difference; what is done once, in the run before."""
    counted(num_robots, mode, 0.5)
    short, long = counted(num_robots, mode, 2.0), counted(num_robots, mode, 5.0)
    return (long[0] - short[0]) / (long[1] - short[1])


@pytest.mark.parametrize("mode", CALLS)
def test_a_request_costs_few_calls(mode: str) -> None:
    assert calls_per_request(8, mode) < CALLS[mode]


@pytest.mark.interpreted
def test_decisions_are_what_they_were() -> None:
    """Where others are meant: `python -m test.unit.simulation.decisions`."""
    kept, found = json.loads(KEPT.read_text(encoding="utf-8")), digests()
    assert [name for name in kept if found.get(name) != kept[name]] == [] and found.keys() == kept.keys()


def test_the_collector_is_as_it_was_afterwards() -> None:
    before, plant = (gc.get_threshold(), gc.get_freeze_count(), gc.isenabled()), factory(1)
    simulate(schedule(plant), plant, models(), seconds=0.5, seed=1)
    assert (gc.get_threshold(), gc.get_freeze_count(), gc.isenabled()) == before
    with pytest.raises(pytest.fail.Exception, match="stop here"):
        simulate(schedule(plant), plant, models(), seconds=3.0, seed=1, progress=lambda now_s: pytest.fail("stop here"))
    assert (gc.get_threshold(), gc.get_freeze_count(), gc.isenabled()) == before


def test_the_benchmark_says_how_fast_it_is() -> None:
    arguments = ["bench", "simulation", "config/rosa/p1.yaml", "--robots", "4", "--seconds", "1", "--rounds", "2"]
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 0 and "virtual s per CPU s" in told.output
    wrong = CliRunner().invoke(app, [*arguments[:4], "0,x"])
    assert wrong.exit_code != 0
