"""Effect of every dispatch policy on the same tasks, and the frontier between those that favour fast tasks and slow ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from lab.benchmarks.dispatch.world import EDGE, Outcome, arriving, back_to_back
from ros2_rfm_serving.dispatch import DISPATCH_POLICIES, DispatchPolicy
from ros2_rfm_serving.dispatch.best import WeightedPolicy
from ros2_rfm_serving.server import ServerConfig

BATCH_SIZE = 8
PROFILE_S = tuple(EDGE.mean_s(rows) for rows in range(1, BATCH_SIZE + 1))
STATISTICS = ("mean", "p25", "p95", "late")
OURS = ("best", "balanced", "swift")
LATE_POINT = 0.01
"""Unit of late requests, which are compared by difference: a ratio of small shares has no meaning."""
Run = Callable[[ServerConfig, int, int, DispatchPolicy | None], Outcome]
SCENARIOS: Mapping[str, Run] = {
    **{
        f"tasks arrive, load {load:g}": lambda config, seed, number, policy, load=load: arriving(  # type: ignore[misc]
            config, seed, load=load, ahead=0.5, number=number, policy=policy
        )
        for load in (0.8, 1.0, 1.2)
    },
    **{
        f"a fleet of {robots}": lambda config, seed, number, policy, robots=robots: back_to_back(  # type: ignore[misc]
            config, seed, robots=robots, ahead=0.0, number=number, policy=policy
        )
        for robots in (40, 60, 90)
    },
}
"""Scenarios: arrivals relative to the capacity of full batches, and robots that are never idle; 55 of them keep the server busy."""
FRONTIER = ((1.0, 0.14, 0.0), (1.0, 0.5, 0.0), (1.0, 1.0, 0.3), (0.7, 1.0, 0.3), (0.5, 1.0, 0.3), (0.3, 1.0, 0.3), (0.0, 0.5, 0.3))
"""Weights (age, haste, thrift), from the policy that favours the slowest tasks to the one that favours the fastest."""


@dataclass(frozen=True, kw_only=True)
class Row:
    scenario: str
    policy: str
    figures: Mapping[str, float]
    """Mean, p25, p95 of a task in s; late: share of requests."""


def config(policy: str = "fifo", batching: str = "saturation", batch_size: int = BATCH_SIZE) -> ServerConfig:
    return ServerConfig(name="s1", batch_size=batch_size, dispatch=policy, batching=batching, profile_s=PROFILE_S[:batch_size])


def rows(scenarios: Iterable[str], *, seeds: int, number: int) -> Iterator[Row]:
    for scenario in scenarios:
        for policy in DISPATCH_POLICIES:
            yield Row(scenario=scenario, policy=policy, figures=measured(scenario, policy, seeds=seeds, number=number))


def frontier(scenario: str, *, seeds: int, number: int) -> list[Mapping[str, float]]:
    """Return the results of policies between `best` and `swift`."""

    def between(age: float, haste: float, thrift: float) -> type[WeightedPolicy]:
        return type("Between", (WeightedPolicy,), {"AGE": age, "HASTE": haste, "THRIFT": thrift})

    return [measured(scenario, "best", seeds=seeds, number=number, made=between(*powers)) for powers in FRONTIER]


def measured(
    scenario: str, policy: str, *, seeds: int, number: int, made: Callable[[], DispatchPolicy] | None = None
) -> Mapping[str, float]:
    """Return means over draws of tasks. made: factory of a policy in place of the named one."""
    runs = [SCENARIOS[scenario](config(policy), seed, number, made() if made else None).figures() for seed in range(seeds)]
    return {name: sum(run[name] for run in runs) / len(runs) for name in STATISTICS}


def regrets(found: Iterable[Row]) -> dict[str, dict[str, float]]:
    """Return policy -> statistic -> largest excess over the best of all others in %; below 0: the policy is better everywhere.

    The values of `late` are percentage points.
    """
    found = list(found)
    return {
        policy: {name: max(_regret(row, name, found) for row in found if row.policy == policy) for name in STATISTICS}
        for policy in dict.fromkeys(row.policy for row in found)
    }


def _regret(row: Row, name: str, found: Iterable[Row]) -> float:
    least = min(r.figures[name] for r in found if r.scenario == row.scenario and r.policy != row.policy)
    worse = (row.figures[name] - least) / (LATE_POINT if name == "late" else 0.01 * least)
    return float(worse)
