"""The tail of the way to servers, by percentiles that robots and servers say of their own last answers."""

from __future__ import annotations

import random
from collections import deque

import pytest

from ros2_rfm_serving.factory import parse_factory
from ros2_rfm_serving.scheduler.estimation.calibration import TAIL_HELD_S, CorrectionFactors
from ros2_rfm_serving.scheduler.estimation.status_samples import ComponentTotals, RobotStatusSample

WINDOW = 100
"""Answers that a percentile is of."""
RATE = 5
"""Answers of a robot per second."""
FACTORY = parse_factory("""
server_cluster: {num_servers: 2, gpu_type: GPU}
robot_fleet: [{task: carry, num_robots: 6, network: {round_trip_ms: 8, jitter_ms: 2}}]
carry: {pipeline: {action_period_ms: 200}, components: {system1: {model: policy, slo_ms: 150}}}
""")


class Floor:
    """Robots on one server; services and jitter are exponential above what they take at least."""

    def __init__(self, seed: int, jitter_s: float) -> None:
        self.rng, self.now_s, self.jitter_s = random.Random(seed), 0.0, jitter_s
        self.factors = CorrectionFactors()
        self.factors.declare(FACTORY)
        self.trips: dict[str, deque[float]] = {f"carry_{i}": deque(maxlen=WINDOW) for i in range(6)}
        self.sums = dict.fromkeys(self.trips, (0, 0.0))
        self.beyond_s = dict.fromkeys(self.trips, 0.0)
        """Of its own, beside what all have."""
        self.served = deque[float](maxlen=WINDOW)
        self.figures: list[tuple[float, float, float]] = []
        """When a figure was taken over, the mean and the tail."""

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            for robot, trips in self.trips.items():
                for _ in range(RATE):
                    service_s = 0.04 + self.rng.expovariate(1 / 0.01)
                    self.served.append(service_s)
                    trips.append(service_s + 0.008 + self.beyond_s[robot] + self.rng.expovariate(1 / self.jitter_s))
                    count, total = self.sums[robot]
                    self.sums[robot] = count + 1, total + trips[-1]
            for robot in self.trips:
                self._says(robot)
            if self.factors.look(self.now_s):
                travel = self.factors.travels(FACTORY)["carry"]
                self.figures.append((self.now_s, travel.mean_s, travel.tail_s))

    def far(self) -> list[str]:
        return [far.robot for far in self.factors.far(self.now_s)]

    def _says(self, robot: str) -> None:
        word = RobotStatusSample(
            robot=robot,
            task="carry",
            server="server_1",
            streams=True,
            asked={"system1": ComponentTotals(*self.sums[robot])},
            round_trip_p99_s=_p99(self.trips[robot]),
        )
        self.factors.hear(word, 0.05, _p99(self.served), self.now_s)


def _p99(values: deque[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


@pytest.mark.parametrize("jitter_s", [0.002, 0.006])
def test_a_network_that_stays_as_it_is_has_few_tails_in_hours(jitter_s: float) -> None:
    """Each one may ask for a plan. Percentiles of the last hundred answers, looked at each second as if each were new, made
    28 to 35 an hour."""
    floor = Floor(1, jitter_s)
    floor.run(2 * 3600)
    assert len(floor.figures) <= 2, floor.figures


def test_jitter_that_triples_is_found_in_mean_and_tail_and_its_end_after_a_hold() -> None:
    floor = Floor(2, 0.006)
    floor.run(900)
    floor.figures.clear()
    floor.jitter_s *= 3
    floor.run(120)
    (_, mean_s, _), (found_s, _, tail_s) = floor.figures
    assert 0.02 < mean_s < 0.035 and 0.04 < tail_s < 0.1
    floor.jitter_s /= 3
    floor.run(900)
    fell_s = next(at_s for at_s, _, now_s in floor.figures if at_s > found_s and now_s < tail_s)
    assert fell_s - found_s >= TAIL_HELD_S and floor.figures[-1][2] < 0.04 and len(floor.figures) <= 5


def test_robots_with_a_bad_network_are_named_the_worst_first_and_no_others() -> None:
    """They were in the mean of their task, and nobody said who they are."""
    floor = Floor(1, 0.002)
    floor.run(120)
    assert floor.far() == []
    floor.beyond_s |= {"carry_2": 0.12, "carry_4": 0.2}
    floor.run(20)
    assert floor.far() == ["carry_4", "carry_2"]
    first = floor.factors.far(floor.now_s)[0]
    assert first.planned_s < 0.1 < first.way_s < 0.21, "as much of it as is sure"
    floor.beyond_s["carry_4"] = 0.0
    floor.run(30)
    assert floor.far() == ["carry_2"]
    floor.factors.keep([name for name in floor.trips if name != "carry_2"])
    assert floor.far() == [] and floor.factors.far(floor.now_s + 1e3) == ()


@pytest.mark.parametrize("jitter_s", [0.002, 0.02])
def test_a_network_that_is_as_bad_for_all_of_them_names_nobody_for_long(jitter_s: float) -> None:
    floor = Floor(2, jitter_s)
    floor.run(60)
    for _ in range(12):
        floor.run(10)
        assert floor.far() == []
