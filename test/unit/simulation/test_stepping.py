"""Servers that batch continuously, in virtual time: in whole factories, and under the loads of a profile."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.profiles import Profile, SteppedService
from ros2_rfm_serving.profiles.arrivals import FLEET_PERIOD, Arrival, ArrivalProcess, ClosedLoop, OpenLoop
from ros2_rfm_serving.profiles.measure import measure, rates_hz
from ros2_rfm_serving.scheduler import plan_factory, to_schedule
from ros2_rfm_serving.simulation import Crash, Report, simulate
from ros2_rfm_serving.types import EngineReply, InferenceRequest, Schedule
from ros2_rfm_serving.virtual_time.under_load import LawEngine, SteppedSubject, law_subject
from test.unit.simulation.simulated import SERVICE_S, T_ACT_S, balanced, factory, models, run, schedule
from test.unit.stepping import FakeStepping

CONTINUOUS = "dispatch: fifo, batching: continuous"


def law(jitter: float = 0.0) -> SteppedService:
    footprint = models(jitter).footprint("vla", "GPU")
    assert footprint and footprint.service
    stepped = footprint.service.stepped_law()
    assert stepped
    return stepped


def plant_and_plan(num_robots: int, *, slo_ms: float = 400, rate_hz: float = math.inf) -> tuple[Factory, Schedule]:
    plant = factory(num_robots, slo_ms=slo_ms, servers=CONTINUOUS)
    return plant, schedule(plant, batching="continuous", rate_hz=rate_hz)


def continuous(num_robots: int, *, slo_ms: float = 400, rate_hz: float = math.inf, **given: object) -> Report:
    return run(*plant_and_plan(num_robots, slo_ms=slo_ms, rate_hz=rate_hz), **given)  # type: ignore[arg-type]


# --- the law ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_rows_that_enter_together_and_stay_alone_take_what_the_law_of_whole_batches_says(rows: int) -> None:
    assert law().mean_s(rows) == pytest.approx((40 + 10 * rows) / 1e3)


def test_rows_are_filled_up_to_the_next_shape() -> None:
    assert law().perception_s(5) == law().perception_s(6) > law().perception_s(4)
    assert law().step_s(7) == law().step_s(8) and law().max_rows == 8
    assert law().capacity_hz() == pytest.approx(8 / 0.12)


CONTRADICTIONS: list[tuple[str, dict[str, object]]] = [
    ("vla", {"perception_base_ms": 40}),
    ("vla", {"perception_per_row_ms": 11}),
    ("vla", {"sizes": [2, 2]}),
    ("judge", {}),
]


@pytest.mark.parametrize(("model", "steps"), CONTRADICTIONS)
def test_a_catalogue_whose_steps_contradict_its_law_is_refused(model: str, steps: dict[str, object]) -> None:
    data = models().model_dump(exclude_unset=True)
    service = data["models"][model]["gpus"]["GPU"]["service"]
    service["steps"] = {"num_steps": 4, "perception_base_ms": 12, "perception_per_row_ms": 6, **steps}
    with pytest.raises(ValueError, match="steps"):
        type(models()).model_validate(data)


# --- in a factory ----------------------------------------------------------------------------------------------------------


def test_a_robot_alone_has_the_closed_loop_rate_in_either_way_of_batching() -> None:
    assert continuous(1).raw == pytest.approx(1 / (T_ACT_S + SERVICE_S), rel=0.01)


def test_robots_that_saturate_a_server_share_its_throughput() -> None:
    assert continuous(40, slo_ms=2000, seconds=20).raw == pytest.approx(law().capacity_hz(), rel=0.08)


def test_a_request_does_not_wait_for_a_whole_batch() -> None:
    """Eight robots at random phases, at three quarters of what batches of eight can: nobody waits for 120 ms to begin."""
    plant = factory(10, slo_ms=400)
    whole = run(plant, schedule(plant, batch_size=8, rate_hz=3.0), jitter=0.05, seconds=30).components["system1"]
    joined = continuous(10, rate_hz=3.0, jitter=0.05, seconds=30).components["system1"]
    assert joined.p50_s < 0.7 * whole.p50_s and joined.p99_s < 0.8 * whole.p99_s
    assert joined.count >= 0.97 * whole.count


def test_pipelined_robots_get_a_chunk_per_action_period_that_is_frames_old(depth: int = 3) -> None:
    plant = factory(2, slo_ms=2000, servers=CONTINUOUS, mode="async, pipelining: {pp_generation: 2}")
    report = run(plant, schedule(plant, batching="continuous"), seconds=30)
    assert report.raw == pytest.approx(2 / T_ACT_S, rel=0.03)
    # answered in its third frame, 200 ms after another, by the last two of four steps
    assert (depth - 1) * T_ACT_S < report.components["system1"].p50_s < (depth - 0.5) * T_ACT_S
    assert balanced(report) and report.counters.refused == 0


def test_a_crash_takes_rows_in_flight_with_it_and_nothing_else() -> None:
    report = continuous(24, slo_ms=2000, seconds=12, crashes=(Crash(server="s1", at_s=8.0),))
    assert balanced(report) and report.counters.dropped >= law().max_rows
    assert report.raw > 0.5 * law().capacity_hz()


def test_a_model_that_nobody_said_the_steps_of_cannot_be_simulated_so() -> None:
    data = models().model_dump(exclude_unset=True)
    del data["models"]["vla"]["gpus"]["GPU"]["service"]["steps"]
    catalogue = type(models()).model_validate(data)
    plant, plan = plant_and_plan(1)
    with pytest.raises(ModelError, match="steps"):
        simulate(plan, plant, catalogue, seconds=1, seed=1)


# --- under the loads of a profile ------------------------------------------------------------------------------------------


def test_a_request_that_meets_an_idle_server_takes_perception_and_steps() -> None:
    subject = law_subject(law())
    assert subject.unloaded_s == pytest.approx(law().mean_s(4))  # of half of its rows: it sets the size of a fleet
    assert subject.latencies_s(OpenLoop(2.0), 20, np.random.default_rng(1)) == pytest.approx([0.05] * 20)


def test_no_way_of_entering_exceeds_full_batches_and_the_servers_own_comes_near_them() -> None:
    assert 0.9 * law().capacity_hz() <= law_subject(law()).max_rate_hz <= 1.02 * law().capacity_hz()


PER_ROW = SteppedService(
    perception_base_s=1.1e-3,
    perception_per_row_s=0.45e-3,
    step_base_s=0.35e-3,
    step_per_row_s=0.2e-3,
    num_steps=5,
    sizes=(*range(1, 17),),
)
"""As the embedded policy on a CPU: a perception costs as much as three steps, and rows more than what they share."""
SHARED = replace(
    PER_ROW, perception_base_s=0.5e-3, perception_per_row_s=0.1e-3, step_base_s=5e-3, step_per_row_s=0.1e-3, num_steps=10
)


@pytest.mark.parametrize(("law_of_costs", "most"), [(PER_ROW, 1.015), (SHARED, 0.85)])
@pytest.mark.parametrize("share", [0.7, 0.9])
def test_joining_is_never_slower_than_whole_batches_of_whoever_waits_and_faster_where_steps_are_shared(
    law_of_costs: SteppedService, most: float, share: float
) -> None:
    def load() -> ArrivalProcess:
        return ClosedLoop(share * law_of_costs.capacity_hz(), law_of_costs.mean_s(8), np.random.default_rng(7))

    joined = law_subject(law_of_costs).latencies_s(load(), 1500, np.random.default_rng(0))
    whole = in_whole_batches(law_of_costs, load(), 1500)
    assert np.mean(joined[150:]) <= most * np.mean(whole[150:])
    assert np.quantile(joined[150:], 0.99) <= (most + 0.05) * np.quantile(whole[150:], 0.99)


class OneByOneIsDearer(LawEngine):
    """As the embedded policy: rows that go on one by one cost 7 % more than the same ones in one call."""

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply]:
        before_s = self.spent_s
        answers = super().infer(requests)
        self.spent_s = before_s + WHOLE * (self.spent_s - before_s)
        return answers


WHOLE = 0.93
NOISY = replace(PER_ROW, jitter=0.2)


@pytest.mark.parametrize("num_robots", [4, 8, 16])
def test_a_server_that_was_just_started_answers_as_fast_as_whole_batches_where_joining_does_not_pay(num_robots: int) -> None:
    """Each draw is the first second of a server. 70 % of the throughput of fixed batches, robots at random phases."""
    rate_hz = 0.7 * num_robots / (WHOLE * NOISY.mean_s(num_robots))
    joined, whole = list[float](), list[float]()

    def start(rng: np.random.Generator) -> tuple[Engine, Callable[[], float]]:
        engine = OneByOneIsDearer(NOISY, rng)
        return engine, lambda: engine.spent_s

    for draw in range(8):
        loads = [ClosedLoop(rate_hz, num_robots / rate_hz / FLEET_PERIOD, np.random.default_rng(draw)) for _ in range(2)]
        joined += SteppedSubject(start, (16, 16), rehearsed=True).latencies_s(loads[0], int(rate_hz), np.random.default_rng(draw))
        whole += in_whole_batches(NOISY, loads[1], int(rate_hz), WHOLE, np.random.default_rng(draw))
    for quantile, most in ((0.5, 1.03), (0.99, 1.05)):
        assert np.quantile(joined, quantile) <= most * np.quantile(whole, quantile)


def in_whole_batches(
    costs: SteppedService, load: ArrivalProcess, num_requests: int, factor: float = 1.0, rng: np.random.Generator | None = None
) -> list[float]:
    """`batching: fixed` of an engine that computes no rows that are not there."""
    now_s, latencies_s = 0.0, list[float]()
    while len(latencies_s) < num_requests:
        now_s = max(now_s, load.next_s())
        batch = list[Arrival]()
        while load.next_s() <= now_s and len(batch) < costs.max_rows:
            batch.append(load.next_arrival())
        now_s += factor * (costs.draw_s(len(batch), rng) if rng else costs.mean_s(len(batch)))
        for sent in batch:
            latencies_s.append(now_s - sent.at_s)
            load.answered(sent.source, now_s)
    return latencies_s[:num_requests]


@pytest.mark.parametrize("load", ["fleet", "poisson"])
def test_a_real_engine_and_the_law_of_its_costs_have_the_same_latencies(load: str) -> None:
    """The engine is `Stepping` and in the hands of a `ModelServer`; only what its calls take is made up, and its clock."""
    wanted, calls_s = law(), list[float]()
    engine = FakeStepping(calls_s.append, wanted.perception_s, wanted.step_s)
    engine.num_steps = wanted.num_steps

    def start(rng: np.random.Generator) -> tuple[FakeStepping, Callable[[], float]]:
        assert not engine.in_flight  # nothing is left of the run before
        calls_s.clear()
        return engine, lambda: sum(calls_s)

    def requests() -> ArrivalProcess:
        rng = np.random.default_rng(7)
        return ClosedLoop(40.0, 0.05, rng) if load == "fleet" else OpenLoop(40.0, rng)

    real = SteppedSubject(start, (16, 16))  # type: ignore[arg-type]
    found = [subject.latencies_s(requests(), 300, np.random.default_rng(0)) for subject in (real, law_subject(wanted))]
    assert found[0] == pytest.approx(found[1])


# --- planned ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_robots", "most"), [(20, 1.05), (24, 1.2)])
def test_what_the_scheduler_predicts_with_such_a_profile_is_what_the_factory_does(num_robots: int, most: float) -> None:
    """`most`: twelve robots of a server, which takes eight rows, fall into step: those answered together ask together, and batches
    are fuller than those of robots at random phases, by which a profile is measured."""
    subject = law_subject(law(0.05))
    key = ("vla", "GPU", "continuous", 1)
    points = [measure(subject, key, "fleet", rate, 500) for rate in rates_hz(subject.max_rate_hz)[:9]]
    plant = factory(num_robots, slo_ms=250, servers=CONTINUOUS)
    plant = plant.model_copy(update={"server_cluster": (plant.server_cluster[0].model_copy(update={"num_servers": 2}),)})
    solution = plan_factory(plant, Profile.of(points), models(0.05))
    assert solution.feasible and {(s.batching, s.batch_size) for s in solution.servers} == {("continuous", 1)}
    report = simulate(to_schedule(solution, plant.robots, epoch=1), plant, models(0.05), seconds=40, seed=1)
    assert 0.95 * solution.expected <= report.goodput <= most * solution.expected
    assert report.components["system1"].slo_attainment >= 0.99


def test_a_model_measured_in_both_ways_is_planned_in_the_one_that_the_descriptor_asks_for() -> None:
    rows = [
        replace(point, batching=batching)
        for batching in ("fixed", "continuous")
        for point in [measure(law_subject(law()), ("vla", "GPU", "fixed", 1), "fleet", rate, 100) for rate in (5.0, 10.0)]
    ]
    for servers, batching in (("dispatch: fifo", "fixed"), (CONTINUOUS, "continuous")):
        solution = plan_factory(factory(2, servers=servers), Profile.of(rows), models())
        assert {s.batching for s in solution.servers} == {batching}
