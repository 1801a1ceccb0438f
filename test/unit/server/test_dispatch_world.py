"""`best` against the others, in a closed loop around the real server."""

from __future__ import annotations

from functools import cache

import pytest

from ros2_rfm_serving.server import ServerConfig
from test.unit.server.dispatch_world import CLOUD, EDGE, Outcome, World, arriving, back_to_back, draw_tasks

POLICIES = ("fifo", "least_attained", "wait_ratio", "deadline", "best")
PROFILE_S = tuple(EDGE.mean_s(rows) for rows in range(1, 9))
NOISE = 0.025


def config(policy: str, batching: str = "saturation", batch_size: int = 8) -> ServerConfig:
    return ServerConfig(name="s1", batch_size=batch_size, dispatch=policy, batching=batching, profile_s=PROFILE_S)


@cache
def figures(scenario: str, policy: str) -> dict[str, float]:
    """Means over three draws of tasks."""
    runs = [
        arriving(config(policy), seed, load=1.1, ahead=0.5, number=200).figures()
        if scenario == "arriving"
        else back_to_back(config(policy), seed, robots=60, ahead=0.0, number=200).figures()
        for seed in range(3)
    ]
    return {name: sum(run[name] for run in runs) / len(runs) for name in runs[0]}


@pytest.mark.parametrize("other", POLICIES[:-1])
@pytest.mark.parametrize("scenario", ["arriving", "a fleet"])
def test_best_is_no_worse_than_any_other(scenario: str, other: str) -> None:
    ours, theirs = figures(scenario, "best"), figures(scenario, other)
    assert ours["mean"] <= theirs["mean"] * (1 + NOISE) and ours["p95"] <= theirs["p95"] * (1 + NOISE)
    assert ours["late"] <= theirs["late"] + 0.01
    if other == "wait_ratio":  # others buy their quarter of quick tasks with the slow ones, or with late answers
        assert ours["p25"] <= theirs["p25"] * (1 + 2.5 * NOISE), "few tasks decide it, it scatters the most"


def test_in_an_overload_there_is_a_margin() -> None:
    ours, kairos = figures("arriving", "best"), figures("arriving", "wait_ratio")
    assert ours["mean"] < kairos["mean"] and ours["p95"] < 0.98 * kairos["p95"] and ours["late"] < 0.5 * kairos["late"]


def test_a_cloud_tier_helps_when_the_edge_is_short() -> None:
    tasks = draw_tasks(0, 60, ahead=0.0)
    starts_s = [0.05 * i for i in range(len(tasks))]

    def run(*laws: object) -> Outcome:
        world = World(config("wait_ratio", batch_size=4), laws, round_trip_s=0.1)  # type: ignore[arg-type]
        return world.run([[task] for task in tasks], starts_s)

    alone, both = run(EDGE), run(EDGE, CLOUD)
    assert both.overflowed > 0 and both.figures()["mean"] < alone.figures()["mean"]


def test_the_same_draw_gives_the_same_outcome_and_nothing_is_lost() -> None:
    first, second = (arriving(config("best", "wait"), 3, load=0.8, ahead=0.5, number=60) for _ in range(2))
    assert first == second and len(first.task_s) == 60
