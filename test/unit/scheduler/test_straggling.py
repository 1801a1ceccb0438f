"""Services that take longer than others, found in what servers count; and none where there are none."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.factory.cluster import StragglerConfig
from ros2_rfm_serving.scheduler.estimation import ServerStatusSample
from ros2_rfm_serving.scheduler.estimation.tail_estimator import HELD_S, SETTLED_S, ServiceBaseline, TailEstimator
from ros2_rfm_serving.types import ServerState
from ros2_rfm_serving.types.histogram import Histogram

SERVERS = tuple(f"server_{i}" for i in range(1, 5))
TYPES = dict.fromkeys((*SERVERS, "spare"), "GPU")
Times = Callable[[str, float], float]
"""(server, now) -> how many times longer its next batch takes."""


class Engines:
    """Batches one after the other on four servers, of 1 to 8 rows, and what is counted of them."""

    def __init__(self, seed: int, base_s: float = 0.04, row_s: float = 0.01, jitter: float = 0.05) -> None:
        self.rng, self.now_s, self.straggling = random.Random(seed), 0.0, TailEstimator()
        self.base_s, self.row_s, self.jitter = base_s, row_s, jitter
        self.usual = {name: ServiceBaseline(base_s + 8 * row_s, jitter, base_s + row_s) for name in SERVERS}
        self.histograms = {name: Histogram() for name in SERVERS}
        self.free_s = dict.fromkeys(SERVERS, 0.0)
        self.times: Times = lambda server, now_s: 1.0
        self.changes = 0
        self.straggling.place(SERVERS, ())

    def straggle(self, share: float, times: float, *those: str) -> None:
        self.times = lambda server, _: times if server in (those or SERVERS) and self.rng.random() < share else 1.0

    def run(self, seconds: float, declared: StragglerConfig | None = None) -> dict[str, StragglerConfig]:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += 0.5
            for name in SERVERS:
                self._serve(name)
                counted = self.histograms[name]
                word = ServerStatusSample(
                    server=name,
                    state=ServerState.READY,
                    replies=sum(counted.counts),
                    inference_s=counted.sum,
                    bounds_s=counted.bounds,
                    counts=tuple(counted.counts),
                )
                assert word.is_sane
                self.straggling.hear(word, self.now_s)
            if self.now_s % 5.0 == 0.0:
                self.changes += self.straggling.look(self.usual, TYPES, declared, self.now_s)
        return self.straggling.used

    def _serve(self, name: str) -> None:
        while self.free_s[name] < self.now_s:
            rows = self.rng.randint(1, 8)
            usual_s = (self.base_s + rows * self.row_s) * self.rng.gammavariate(self.jitter**-2, self.jitter**2)
            took_s = usual_s * self.times(name, self.free_s[name])
            self.free_s[name] += took_s + self.rng.expovariate(20.0)
            for _ in range(rows):
                self.histograms[name].add(took_s)


@pytest.mark.parametrize(("share", "times"), [(0.02, 4.0), (0.05, 3.0), (0.2, 5.0)])
def test_which_share_and_how_many_times(share: float, times: float) -> None:
    """Of all servers alike, and of one that hosts nothing that could be counted too; with few plans."""
    engines = Engines(1)
    engines.straggle(share, times)
    used = engines.run(400.0)
    assert set(used) == set(TYPES) and len(set(used.values())) == 1 and engines.changes <= 3
    assert used["spare"].share == pytest.approx(share, rel=0.5) and used["spare"].factor == pytest.approx(times, rel=0.25)


def test_one_server_alone() -> None:
    engines = Engines(2)
    engines.run(60.0)
    engines.straggle(0.05, 4.0, "server_2")
    used = engines.run(200.0)
    assert set(used) == {"server_2"} and used["server_2"].share == pytest.approx(0.05, rel=0.5)


@pytest.mark.patient
def test_they_end_and_begin_without_a_plan_each_time() -> None:
    """Two minutes each; in the end they are over."""
    engines = Engines(3)
    for _ in range(3):
        engines.straggle(0.03, 4.0)
        engines.run(120.0)
        engines.times = lambda *_: 1.0
        engines.run(120.0)
    assert engines.straggling.used and engines.changes <= 4
    assert not engines.run(2 * HELD_S)


def test_what_is_declared_is_refuted_by_more_alone() -> None:
    engines = Engines(4)
    assert not engines.run(200.0, StragglerConfig(share=0.1, factor=3.0))
    engines.straggle(0.02, 4.0)
    assert not engines.run(200.0, StragglerConfig(share=0.02, factor=4.0))
    assert engines.run(200.0, StragglerConfig(share=0.002, factor=2.0))


def test_a_server_whose_counts_go_back_or_are_of_other_ranges_begins_anew() -> None:
    engines = Engines(5)
    engines.straggle(0.1, 4.0)
    for _ in range(30):
        engines.run(SETTLED_S)
        for counted in engines.histograms.values():
            counted.counts = [0] * len(counted.counts)
    assert not engines.straggling.used
    engines.now_s -= 3_600.0
    engines.free_s = dict.fromkeys(SERVERS, engines.now_s)
    assert set(engines.run(60.0)) == set(TYPES)


def whole(engines: Engines, levels: list[float], period_s: float) -> Times:
    """A server as a whole takes longer, and less long again, at every turn."""
    return lambda server, now_s: levels[int(now_s / period_s) % len(levels)] if server == "server_1" else 1.0


@pytest.mark.patient
@given(
    seed=st.integers(0, 10_000),
    jitter=st.sampled_from([0.01, 0.05, 0.15, 0.3]),
    row_s=st.sampled_from([0.0, 0.01, 0.04]),
    base_s=st.floats(0.03, 0.4),
    levels=st.lists(st.floats(0.7, 1.3), min_size=1, max_size=4),
    once=st.floats(0.5, 6.0),
    period_s=st.sampled_from([3.0, 10.0, 45.0]),
    compiles=st.integers(0, 3),
)
@settings(max_examples=5, deadline=None)
def test_none_is_invented(
    seed: int, jitter: float, row_s: float, base_s: float, levels: list[float], once: float, period_s: float, compiles: int
) -> None:
    """By batches that come together, first ones that compile, a model that scatters, a server that drifts up and down all the time,
    or once by however much."""
    engines = Engines(seed, base_s, row_s, jitter)
    drifts, slow = whole(engines, levels, period_s), list(SERVERS) * compiles

    def times(server: str, now_s: float) -> float:
        if server in slow:
            slow.remove(server)
            return 20.0
        return drifts(server, now_s) * (once if server == "server_3" and 60.0 < now_s < 130.0 else 1.0)

    engines.times = times
    assert not engines.run(150.0) and not engines.changes, engines.straggling.found


@pytest.mark.parametrize(
    "wrong", [{"counts": (1, 2)}, {"counts": (-1, 0, 0)}, {"bounds_s": (2.0, 1.0)}, {"counts": (1 << 60, 0, 0)}]
)
def test_counts_that_are_none_are_not_sane(wrong: dict[str, tuple[float, ...]]) -> None:
    good = ServerStatusSample(server="s", state=ServerState.READY, bounds_s=(0.1, 0.2), counts=(1, 2, 3))
    assert good.is_sane and not replace(good, **wrong).is_sane  # type: ignore[arg-type]
