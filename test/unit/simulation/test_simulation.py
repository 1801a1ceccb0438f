from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.errors import ConfigurationError, ModelError
from ros2_rfm_serving.factory.task import Execution
from ros2_rfm_serving.faults import Direction, FaultPlan
from ros2_rfm_serving.profiles import parse_profiles
from ros2_rfm_serving.simulation import (
    ConnectionCut,
    Crash,
    NetworkConditions,
    Report,
    SimulationConditions,
    StragglerConditions,
    TaskArrivals,
    load_trace,
    simulate,
)
from test.unit.simulation.simulated import PLAN_S, SERVICE_S, T_ACT_S, balanced, factory, models, run, schedule

# --- one robot and many ----------------------------------------------------------------------------------------------------


def test_a_robot_alone_has_the_closed_loop_rate() -> None:
    report = run(factory())
    assert report.raw == pytest.approx(1 / (T_ACT_S + SERVICE_S), abs=1 / 60)
    assert report.goodput == report.raw and report.components["system1"].slo_attainment == 1.0
    assert report.components["system1"].p99_s == pytest.approx(SERVICE_S)
    (server,) = report.servers
    assert server.utilisation == pytest.approx(SERVICE_S / (T_ACT_S + SERVICE_S), rel=0.01)


@pytest.mark.parametrize("num_robots", [8, 12])
def test_robots_that_saturate_a_server_share_its_throughput(num_robots: int) -> None:
    """A closed loop of N robots: throughput 1/s, response N s - t_act."""
    report = run(factory(num_robots))
    assert report.raw == pytest.approx(1 / SERVICE_S, rel=0.005)
    assert report.components["system1"].mean_s == pytest.approx(num_robots * SERVICE_S - T_ACT_S, rel=0.005)
    assert report.servers[0].utilisation == pytest.approx(1.0)


@pytest.mark.parametrize("calls", [0.1, 0.25, 1.0])
def test_plans_cost_their_share_of_a_cycle(calls: float) -> None:
    """ROSA §3.4.2, eq. 4."""
    report = run(factory(plans=calls), seconds=300)
    assert report.raw == pytest.approx(1 / (T_ACT_S + SERVICE_S + calls * PLAN_S), rel=0.005)
    plans = report.components["system2"].count / report.components["system1"].count
    assert plans == pytest.approx(calls, rel=0.02)


def test_a_cap_is_reached_when_the_loop_allows_it_and_not_exceeded() -> None:
    report = run(plant := factory(8), schedule(plant, rate_hz=2.0), jitter=0.3, seconds=120)
    assert report.raw == pytest.approx(16.0, rel=0.005)


@pytest.mark.parametrize("calls", [0.1, 0.5])
def test_a_cap_at_the_closed_loop_rate_is_reached_although_plans_come_in_between(calls: float) -> None:
    closed_hz = 1 / (T_ACT_S + SERVICE_S + calls * PLAN_S)
    report = run(plant := factory(plans=calls), schedule(plant, rate_hz=0.999 * closed_hz), seconds=300)
    assert report.raw == pytest.approx(closed_hz, rel=0.005)


@pytest.mark.parametrize(("batch_size", "expected_s"), [(1, 0.05), (8, 0.12)])
def test_an_asynchronous_robot_is_as_fast_as_the_slower_of_the_two(batch_size: int, expected_s: float) -> None:
    plant = factory(mode="async", slo_ms=2000)
    report = run(plant, schedule(plant, batch_size=batch_size))
    assert report.components["system1"].mean_s == pytest.approx(expected_s)
    assert report.raw == pytest.approx(1 / max(T_ACT_S, expected_s), rel=0.01)


def test_an_asynchronous_robot_that_waits_for_inference_is_as_fast_as_that() -> None:
    """12 robots on one server: 0.6 s in turn, more than the 0.2 s of execution; a request goes out at a control step."""
    report = run(factory(12, mode="async", slo_ms=2000))
    assert report.raw == pytest.approx(1 / SERVICE_S, rel=0.02)


def test_batches_are_filled_under_load() -> None:
    plant = factory(40, slo_ms=2000)
    report = run(plant, schedule(plant, batch_size=8))
    assert report.raw == pytest.approx(8 / 0.12, rel=0.03)


def test_placements_on_one_gpu_take_turns() -> None:
    plant = factory(plans=0.5)
    alone, shared = run(plant), run(plant, schedule(plant, gpu="gpu_1"))
    for component in ("system1", "system2"):
        assert shared.components[component].mean_s == pytest.approx(2 * alone.components[component].mean_s)


def test_continuous_batching_shares_the_processor() -> None:
    """4 of the planner's requests at once, all the time: each takes 450 + 4 x 50 ms."""
    plant = factory(12, plans=1.0, slo_ms=5000)
    report = run(plant, schedule(plant, batch_size=8), seconds=120)
    (planner,) = (server for server in report.servers if server.model == "planner")
    assert planner.rate_hz == pytest.approx(4 / 0.65, rel=0.02)
    assert planner.utilisation == pytest.approx(1.0, abs=0.001)


# --- randomness and conservation -------------------------------------------------------------------------------------------

ROUGH = SimulationConditions(
    network=NetworkConditions(latency_s=0.005, jitter_s=0.01, loss=0.02, cuts=(ConnectionCut(start_s=12.0, end_s=14.0),)),
    stragglers=StragglerConditions(share=0.05, factor=10.0),
    crashes=(Crash(server="s1", at_s=20.0),),
    leaves={"pick_2": 25.0},
    joins={"pick_3": 7.0},
)


@cache
def rough(seed: int) -> Report:
    plant = factory(6, plans=0.2, safety=True)
    plan = schedule(plant, batch_size=2, standby=True)
    return simulate(plan, plant, models(0.1), seconds=40, seed=seed, conditions=ROUGH)


def test_the_same_seed_gives_the_same_report() -> None:
    again = rough.__wrapped__(1)
    assert again == rough(1) and again.to_json() == rough(1).to_json()
    assert rough(2) != rough(1)


def test_every_request_is_somewhere() -> None:
    report = rough(1)
    assert balanced(report)
    counters = report.counters
    assert min(counters.answered, counters.lost, counters.dropped, counters.timeouts, counters.failovers) > 0, "too smooth to tell"


@settings(max_examples=60, deadline=None)
@given(
    num_robots=st.integers(1, 12),
    mode=st.sampled_from(["sync", "async"]),
    loss=st.sampled_from([0.0, 0.1, 1.0]),
    crash_s=st.floats(0.0, 12.0),
    leave_s=st.floats(0.0, 12.0),
    batch_size=st.sampled_from([1, 4]),
    seed=st.integers(0, 100),
)
def test_whatever_happens_the_figures_hold_together(
    num_robots: int, mode: str, loss: float, crash_s: float, leave_s: float, batch_size: int, seed: int
) -> None:
    plant = factory(num_robots, plans=0.3, safety=True, mode=mode)
    report = run(
        plant,
        schedule(plant, batch_size=batch_size, standby=True),
        seconds=10,
        seed=seed,
        jitter=0.2,
        network=NetworkConditions(latency_s=0.01, jitter_s=0.02, loss=loss),
        crashes=(Crash(server="s1", at_s=crash_s, restart_after_s=2.0), Crash(server="s3", at_s=crash_s)),
        leaves={"pick_1": leave_s},
    )
    assert balanced(report)
    assert 0 <= report.goodput <= report.raw <= num_robots / T_ACT_S
    assert report.raw <= 1.001 * max(1, batch_size) / SERVICE_S * 2 + 1, "two servers carry no more"
    for component in report.components.values():
        assert math.isnan(component.slo_attainment) or 0 <= component.slo_attainment <= 1
    for server in report.servers:
        assert 0 <= server.utilisation <= 1 + 1e-9
    if loss == 1.0:
        assert report.raw == 0 and report.counters.answered == 0


def test_one_cause_does_not_reshuffle_another() -> None:
    """A network that never loses anything draws no numbers that others miss."""
    plant = factory(4)
    still = run(plant, jitter=0.2, stragglers=StragglerConditions(share=0.0, factor=100.0))
    assert still == run(plant, jitter=0.2)
    slow = run(plant, jitter=0.2, stragglers=StragglerConditions(share=0.1, factor=2.0))
    assert slow.components["system1"].p99_s > 1.5 * still.components["system1"].p99_s


# --- networks --------------------------------------------------------------------------------------------------------------


def test_latency_is_paid_both_ways() -> None:
    report = run(factory(), network=NetworkConditions(latency_s=0.02))
    assert report.components["system1"].mean_s == pytest.approx(SERVICE_S + 0.04)
    assert report.raw == pytest.approx(1 / (T_ACT_S + SERVICE_S + 0.04), rel=0.01)
    assert report.servers[0].mean_s == pytest.approx(SERVICE_S)


def test_a_cut_network_stops_the_work_and_its_end_resumes_it() -> None:
    free = run(plant := factory(3), seconds=40)
    cut = run(plant, seconds=40, network=NetworkConditions(cuts=(ConnectionCut(start_s=10.0, end_s=30.0),)))
    assert cut.counters.lost > 0 and balanced(cut)
    assert 0.4 * free.raw < cut.raw < 0.52 * free.raw, "20 of 40 s, and a moment to come back"
    for_ever = run(plant, seconds=10, network=NetworkConditions(cuts=(ConnectionCut(start_s=4.0, end_s=math.inf),)))
    assert for_ever.goodput == for_ever.raw == 0


def test_a_cut_may_concern_one_robot() -> None:
    plant = factory(2)
    report = run(plant, network=NetworkConditions(cuts=(ConnectionCut(start_s=0.0, end_s=math.inf, robots=frozenset({"pick_1"})),)))
    assert report.raw == pytest.approx(1 / (T_ACT_S + SERVICE_S), rel=0.01)


@pytest.mark.parametrize("direction", list(Direction))
def test_a_cut_in_one_direction_stops_the_work_too(direction: Direction) -> None:
    free = run(plant := factory(3), seconds=40)
    cut = run(plant, seconds=40, network=NetworkConditions(cuts=(ConnectionCut(start_s=10.0, end_s=30.0, direction=direction),)))
    assert cut.counters.lost > 0 and balanced(cut)
    assert 0.25 * free.raw < cut.raw < 0.52 * free.raw, "20 of 40 s, and the back-off of a robot that hears the server all along"


@settings(max_examples=30, deadline=None)
@given(
    drop=st.sampled_from([0.0, 0.1]),
    duplicate=st.sampled_from([0.0, 0.5, 1.0]),
    reorder=st.sampled_from([0.0, 0.3]),
    corrupt=st.sampled_from([0.0, 0.1, 1.0]),
    seed=st.integers(0, 100),
)
def test_faults_cost_work_and_nothing_else(drop: float, duplicate: float, reorder: float, corrupt: float, seed: int) -> None:
    faults = FaultPlan(drop=drop, duplicate=duplicate, reorder=reorder, corrupt=corrupt, delay_s=0.005, jitter_s=0.005)
    plant = factory(3, plans=0.3, safety=True)
    report = run(plant, seconds=20, seed=seed, network=NetworkConditions(faults=faults))
    assert balanced(report) and report.raw <= 3 / (T_ACT_S + SERVICE_S)
    assert (report.raw == 0) == (corrupt == 1.0), "damaged answers are never executed, and all others are"
    if duplicate:
        assert report.counters.late + report.counters.refused + report.counters.dropped > 0


def test_copies_are_refused_and_the_loop_is_as_fast_as_without() -> None:
    doubled, free = (run(factory(), network=NetworkConditions(faults=FaultPlan(duplicate=share))) for share in (1.0, 0.0))
    assert doubled.raw == free.raw
    c = doubled.counters
    assert c.answered == c.late == c.refused == pytest.approx(c.sent / 3, abs=2), "one request: its answer, and a copy of each"


def test_a_recorded_trace_sets_the_delay(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("time_s,delay_ms\n0,10\n1,30\n2,10\n")
    report = run(factory(), network=NetworkConditions(trace=load_trace(file)), seconds=100)
    system1 = report.components["system1"]
    assert system1.mean_s == pytest.approx(SERVICE_S + 0.04, rel=0.1)
    assert {round(1e3 * q) for q in (system1.p50_s, system1.p99_s)} <= {70, 90, 110}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line|header"),
        ("time,delay\n0,1\n", "header"),
        ("time_s,delay_ms\n", "no points"),
        ("time_s,delay_ms\n0,x\n", ":2:.*two numbers"),
        ("time_s,delay_ms\n0,1,2\n", ":2:.*two numbers"),
        ("time_s,delay_ms\n1,1\n1,2\n", ":3:.*times rise"),
        ("time_s,delay_ms\n0,-1\n", ":2:"),
        ("time_s,delay_ms\nnan,1\n", ":2:"),
    ],
)
def test_a_bad_trace_is_refused_where_it_is_bad(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=says):
        load_trace(file)


# --- faults, comings and goings --------------------------------------------------------------------------------------------


def test_robots_of_a_crashed_server_go_on_with_its_standby() -> None:
    plant = factory(3)
    crash = Crash(server="s1", at_s=15.0, restart_after_s=math.inf)
    without = run(plant, seconds=30, crashes=(crash,))
    saved = run(plant, schedule(plant, standby=True), seconds=30, crashes=(crash,))
    whole = run(plant, seconds=30)
    assert without.raw == pytest.approx(whole.raw / 3, rel=0.05), "10 of 30 s"
    assert saved.counters.failovers == 3 and balanced(saved)
    silent_s = 2.5
    assert saved.raw > whole.raw * (30 - silent_s) / 30 - 0.2
    assert {s.server: s.rate_hz > 0 for s in saved.servers} == {"s1": True, "spare": True}


def test_a_crashed_server_comes_back_when_its_model_is_loaded() -> None:
    plant = factory(3)
    report = run(plant, seconds=30, crashes=(Crash(server="s1", at_s=15.0),))
    whole = run(plant, seconds=30)
    away_s = (whole.raw - report.raw) / whole.raw * 30
    assert 2.9 < away_s < 4.5, "3 s to load, and a moment to come back"
    assert report.counters.failovers == 0 and report.counters.dropped + report.counters.lost > 0


def test_robots_come_and_go() -> None:
    plant, one_hz = factory(2), 1 / (T_ACT_S + SERVICE_S)
    report = run(plant, seconds=40, joins={"pick_1": 25.0}, leaves={"pick_2": 35.0})
    assert report.raw == pytest.approx(one_hz * (20 + 30) / 40, rel=0.02)
    assert balanced(report)


def test_what_is_not_there_cannot_crash_or_leave() -> None:
    for conditions in ({"crashes": (Crash(server="s9", at_s=1.0),)}, {"leaves": {"pick_9": 1.0}}, {"joins": {"pick_9": 1.0}}):
        with pytest.raises(ConfigurationError, match=r"nothing is named '.*_?9'.*(did you mean|known here)"):
            run(factory(), **conditions)


def test_tasks_arrive_as_a_poisson_process() -> None:
    plant = factory(10)
    arrivals = TaskArrivals(rate_hz=0.1, duration_s=5.0)
    report = run(plant, schedule(plant, batch_size=1), seconds=400, arrivals=arrivals)
    always = run(plant, schedule(plant, batch_size=1), seconds=60)
    assert 0 < report.raw < always.raw
    busy = report.servers[0].rate_hz * (report.components["system1"].mean_s + T_ACT_S) / 10
    assert busy == pytest.approx(0.5, rel=0.1), "half of the time each robot has a task"
    assert balanced(report)


def test_robots_without_a_route_are_not_served() -> None:
    plant = factory(3)
    plan = schedule(plant)
    partly = replace(plan, routes=tuple(route for route in plan.routes if route.robot != "pick_3"))
    report = run(plant, partly)
    assert (report.tasks["pick"].num_robots, report.tasks["pick"].served) == (3, 2)
    assert report.raw == pytest.approx(2 / (T_ACT_S + SERVICE_S), rel=0.05)


def test_a_model_that_nothing_is_known_about_cannot_be_simulated() -> None:
    plant = factory()
    plan = schedule(plant)
    elsewhere = replace(plan, placements=tuple(replace(p, gpu_type="OTHER") for p in plan.placements))
    with pytest.raises(ModelError, match=r"nobody has said how long.*`rfm profile vla.*`service:`"):
        run(plant, elsewhere)
    with pytest.raises(ModelError, match="batches 'vla'"):
        run(plant, replace(plan, placements=tuple(replace(p, batching="by the dozen") for p in plan.placements)))


# --- what is declared about servers and execution ---------------------------------------------------------------------------


def test_servers_dispatch_as_declared() -> None:
    latencies = {
        policy: run(factory(12, servers=f"dispatch: {policy}"), jitter=0.3).components["system1"].p99_s
        for policy in ("fifo", "best")
    }
    assert latencies["fifo"] != latencies["best"]


def test_requests_overflow_to_a_gpu_elsewhere_and_come_back_later_by_its_round_trip() -> None:
    away = 'overflow: {url: "ws://elsewhere", round_trip_ms: 100}'
    alone, helped = run(factory(12)), run(factory(12, servers=f"dispatch: fifo, {away}"))
    assert balanced(helped) and helped.raw > 1.3 * alone.raw
    latencies_s = helped.components["system1"]
    assert latencies_s.p99_s >= SERVICE_S + 0.1 and latencies_s.mean_s < alone.components["system1"].mean_s


def test_a_server_asks_for_newer_observations_as_declared() -> None:
    never, asked = run(factory(12)), run(factory(12, servers="dispatch: fifo, refetch_after_ms: 60"))
    assert never.counters.dropped == 0 and asked.counters.dropped > 100, "a newer one takes the place of an older one"
    assert balanced(asked) and asked.raw == pytest.approx(never.raw, rel=0.03), "it costs nothing"


def test_a_server_that_waits_for_one_more_wakes_up_by_itself() -> None:
    plant = factory(6, servers="dispatch: fifo, batching: wait")
    report = run(plant, schedule(plant, batch_size=4))
    assert balanced(report) and report.raw > 0


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_horizon_policy_says_how_much_is_executed_on_average_as_declared(mode: str) -> None:
    horizon = f"{{mode: {mode}, horizon: {{policy: confidence, mean_period_ms: 300}}}}"
    plant = factory(1, mode=mode)
    text = {"pick": plant.tasks["pick"].model_copy(update={"execution": Execution.model_validate(yaml.safe_load(horizon))})}
    plant = plant.model_copy(update={"tasks": text})
    cycle_s = 0.3 + (SERVICE_S if mode == "sync" else 0.0)
    assert run(plant, seconds=120).raw == pytest.approx(1.0 / cycle_s, rel=0.1)


def test_a_model_that_was_measured_is_simulated_as_it_was_measured() -> None:
    rows = "".join(
        f"vla,OTHER,fixed,{size},{rate},{ms},{ms},{ms * 1.1},{ms * 1.2},{ms * 1.3}\n"
        for size, rate, ms in ((1, 2, 50), (1, 20, 60), (4, 4, 80), (4, 40, 120))
    )
    profile = parse_profiles("model,gpu_type,batching,batch_size,rate_hz,mean_ms,p50_ms,p90_ms,p95_ms,p99_ms\n" + rows)
    assert profile.batches_s("vla", "OTHER", "fixed", 8) == pytest.approx((0.05, 0.05 + 0.05 / 3, 0.05 + 0.1 / 3, 0.1))
    plant = factory()
    plan = schedule(plant)
    elsewhere = replace(plan, placements=tuple(replace(p, gpu_type="OTHER") for p in plan.placements))
    report = simulate(elsewhere, plant, models(), profile, seconds=60, seed=1)
    assert report.raw == pytest.approx(1 / (T_ACT_S + 0.05), rel=0.03)
