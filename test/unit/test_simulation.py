from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from click.testing import Result
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.errors import ConfigurationError, ModelError
from ros2_rfm_serving.factory import Catalogue, Factory, parse_factory
from ros2_rfm_serving.simulation import (
    Conditions,
    Crash,
    Cut,
    Network,
    Report,
    Stragglers,
    TaskArrivals,
    load_trace,
    simulate,
)
from ros2_rfm_serving.simulation.goodput import ActionTally, Ledger, Tally
from ros2_rfm_serving.types import Placement, Route, Schedule

T_ACT_S, SERVICE_S, PLAN_S, CHECK_S = 0.2, 0.05, 0.5, 0.1


def models(jitter: float = 0.0) -> Catalogue:
    """vla: 40 + 10 b ms; planner alone 500 ms; judge alone 100 ms."""

    def gpu(**service: object) -> dict[str, object]:
        return {
            "GPU": {"memory_gb": 1, "load_s": 3, "source": "test", "derivation": "test", "service": {"jitter": jitter, **service}}
        }

    vla = gpu(batching="fixed", base_ms=40, per_row_ms=10, batch_sizes=[1, 2, 4, 8])
    planner = gpu(batching="continuous", base_ms=450, per_request_ms=50, max_concurrent=4)
    judge = gpu(batching="continuous", base_ms=90, per_request_ms=10)
    return Catalogue.model_validate(
        {
            "models": {
                "vla": {"engine": "emulated", "gpus": vla},
                "planner": {"engine": "emulated", "output": "plan", "gpus": planner},
                "judge": {"engine": "emulated", "output": "judgement", "gpus": judge},
            }
        }
    )


def factory(num_robots: int = 1, *, plans: float = 0.0, safety: bool = False, mode: str = "sync", slo_ms: float = 400) -> Factory:
    components = [f"system1: {{model: vla, prompt: go, slo_ms: {slo_ms:g}}}"]
    if plans:
        components.append("system2: {model: planner, prompt: plan, slo_ms: 2000}")
    if safety:
        components.append("safety: {model: judge, prompt: safe, slo_ms: 300, freq_hz: 2}")
    lines = "\n".join(f"    {line}" for line in components)
    return parse_factory(f"""
server_cluster: {{num_servers: 4, gpu_type: GPU}}
robot_fleet: [{{task: pick, num_robots: {num_robots}}}]
pick:
  execution: {{mode: {mode}}}
  pipeline: {{action_period_ms: {1e3 * T_ACT_S:g}, system2_to_system1_call_ratio: {plans:g}}}
  components:
{lines}
""")


SERVERS = {"system1": ("s1", "vla", "fixed"), "system2": ("s2", "planner", "continuous"), "safety": ("s3", "judge", "continuous")}


def schedule(
    plant: Factory, *, batch_size: int = 1, rate_hz: float = math.inf, standby: bool = False, gpu: str = "", epoch: int = 1
) -> Schedule:
    """Everything of a component on one server; with `standby`, a second one for System 1."""
    (task,) = plant.tasks.values()
    placements, routes = [], []
    for component, spec in task.components.items():
        server, model, batching = SERVERS[component]
        size = batch_size if component == "system1" else 1
        place = Placement(
            server=server,
            model=model,
            components=(component,),
            gpu_type="GPU",
            batching=batching,
            batch_size=size,
            max_sessions=100,
            predicted_p99_s=0.0,
            gpu=gpu,
        )
        placements.append(place)
        spare = "spare" if standby and component == "system1" else ""
        if spare:
            placements.append(replace(place, server=spare, standby=True, gpu=""))
        for robot in plant.robots:
            pace = rate_hz if component == "system1" else spec.freq_hz or math.inf
            slo_s = (spec.slo_ms or 0.0) / 1e3
            routes.append(Route(robot=robot.name, component=component, server=server, max_rate_hz=pace, slo_s=slo_s, standby=spare))
    return Schedule(epoch=epoch, placements=tuple(placements), routes=tuple(routes), predicted_actions_hz=0.0, policy="test")


def run(
    plant: Factory, plan: Schedule | None = None, *, seconds: float = 60.0, seed: int = 1, jitter: float = 0.0, **conditions: object
) -> Report:
    given_conditions = Conditions(**conditions)  # type: ignore[arg-type]
    return simulate(plan or schedule(plant), plant, models(jitter), seconds=seconds, seed=seed, conditions=given_conditions)


def balanced(report: Report) -> bool:
    c = report.counters
    return c.sent == c.answered + c.late + c.lost + c.refused + c.dropped + c.in_flight


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

ROUGH = Conditions(
    network=Network(latency_s=0.005, jitter_s=0.01, loss=0.02, cuts=(Cut(start_s=12.0, end_s=14.0),)),
    stragglers=Stragglers(share=0.05, factor=10.0),
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
        network=Network(latency_s=0.01, jitter_s=0.02, loss=loss),
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
    still = run(plant, jitter=0.2, stragglers=Stragglers(share=0.0, factor=100.0))
    assert still == run(plant, jitter=0.2)
    slow = run(plant, jitter=0.2, stragglers=Stragglers(share=0.1, factor=2.0))
    assert slow.components["system1"].p99_s > 1.5 * still.components["system1"].p99_s


# --- networks --------------------------------------------------------------------------------------------------------------


def test_latency_is_paid_both_ways() -> None:
    report = run(factory(), network=Network(latency_s=0.02))
    assert report.components["system1"].mean_s == pytest.approx(SERVICE_S + 0.04)
    assert report.raw == pytest.approx(1 / (T_ACT_S + SERVICE_S + 0.04), rel=0.01)
    assert report.servers[0].mean_s == pytest.approx(SERVICE_S)


def test_a_cut_network_stops_the_work_and_its_end_resumes_it() -> None:
    free = run(plant := factory(3), seconds=40)
    cut = run(plant, seconds=40, network=Network(cuts=(Cut(start_s=10.0, end_s=30.0),)))
    assert cut.counters.lost > 0 and balanced(cut)
    assert 0.4 * free.raw < cut.raw < 0.52 * free.raw, "20 of 40 s, and a moment to come back"
    for_ever = run(plant, seconds=10, network=Network(cuts=(Cut(start_s=4.0, end_s=math.inf),)))
    assert for_ever.goodput == for_ever.raw == 0


def test_a_cut_may_concern_one_robot() -> None:
    plant = factory(2)
    report = run(plant, network=Network(cuts=(Cut(start_s=0.0, end_s=math.inf, robots=frozenset({"pick_1"})),)))
    assert report.raw == pytest.approx(1 / (T_ACT_S + SERVICE_S), rel=0.01)


def test_a_recorded_trace_sets_the_delay(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("time_s,delay_ms\n0,10\n1,30\n2,10\n")
    report = run(factory(), network=Network(trace=load_trace(file)), seconds=100)
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
    with pytest.raises(ModelError, match=r"no service law.*add `service:`"):
        run(plant, elsewhere)
    with pytest.raises(ModelError, match="batches 'vla'"):
        run(plant, replace(plan, placements=tuple(replace(p, batching="continuous") for p in plan.placements)))


# --- goodput ---------------------------------------------------------------------------------------------------------------


class Book:
    """A ledger of a robot with all kinds of components, where everything is in order at 10 s."""

    def __init__(self) -> None:
        plant = factory(plans=0.5, safety=True)
        self.actions = ActionTally()
        self.tallies = {name: Tally() for name in plant.tasks["pick"].components}
        self.ledger = Ledger(plant.tasks["pick"], self.tallies, self.actions, 0.0)
        self.ledger.begin(9.0)
        self.call("system2", 9.0, 9.5)
        self.call("safety", 9.5, 9.6)
        self.call("system1", 9.9, 10.0)

    def call(self, component: str, sent_s: float, answered_s: float | None = None) -> None:
        self.ledger.sent(component, sent_s)
        if answered_s is not None:
            self.ledger.answered(component, answered_s)

    def counts(self, now_s: float = 10.0) -> bool:
        before = self.actions.qualified
        self.ledger.executed(now_s)
        return self.actions.qualified > before


def test_an_action_counts_when_all_it_relies_on_is_in_time() -> None:
    assert Book().counts()


def test_a_late_prediction_does_not_count() -> None:
    book = Book()
    book.call("system1", 9.5, 9.95)
    assert not book.counts() and book.actions.raw == 1
    assert book.tallies["system1"].within == 1 and len(book.tallies["system1"].latencies_s) == 2


def test_an_action_under_a_late_plan_does_not_count_until_the_next_plan() -> None:
    book = Book()
    book.call("system2", 7.0, 9.8)
    assert book.counts(), "it was asked for under the plan before"
    book.call("system1", 9.9, 10.0)
    assert not book.counts()
    book.call("system2", 10.0, 10.5)
    book.call("system1", 10.5, 10.6)
    book.call("safety", 10.0, 10.1)
    assert book.counts(10.6)


def test_a_late_or_overdue_check_spoils_the_actions_after_it() -> None:
    book = Book()
    book.call("safety", 9.5, 9.9)
    assert not book.counts(), "400 ms, and 300 are allowed"
    book = Book()
    assert book.counts(9.5 + 1.05 * (0.5 + 0.3))
    assert not book.counts(9.5 + 1.05 * (0.5 + 0.3) + 1e-6), "the next check should have been answered by now"


def test_before_the_first_check_and_plan_are_due_only_the_plan_is_missed() -> None:
    book = Book()
    book.ledger.begin(20.0)
    book.call("system1", 20.0, 20.1)
    assert not book.counts(20.1), "no plan yet"
    book.call("system2", 20.0, 20.2)
    book.call("system1", 20.2, 20.25)
    assert book.counts(20.25), "the first check has until 20.3"
    assert not book.counts(20.4)


def test_what_could_still_be_in_time_is_not_judged() -> None:
    book = Book()
    book.call("system1", 9.7)
    book.call("safety", 8.0)
    book.ledger.end(10.0)
    assert (book.tallies["system1"].sent, book.tallies["system1"].undecided) == (2, 1)
    assert (book.tallies["safety"].sent, book.tallies["safety"].undecided) == (2, 0)


def test_a_saturated_factory_counts_only_what_is_within_the_slo() -> None:
    """ROSA §4.3: 145.5 raw actions/s x 17.0 % within the SLO = 24.8 that count."""
    report = run(factory(12, slo_ms=395), jitter=0.3, seconds=120)
    share = report.components["system1"].slo_attainment
    assert 0.2 < share < 0.8
    assert report.goodput == pytest.approx(report.raw * share, rel=0.01)


# --- speed and the command -------------------------------------------------------------------------------------------------


def test_a_simulated_second_takes_little_of_a_real_one() -> None:
    """About 110 requests/s: 150 times faster than real time on a core of its own; a busy machine has room for a factor of 5."""
    plant = factory(30, plans=0.05, safety=True)
    plan = schedule(plant, batch_size=8, rate_hz=1.8)
    started_s = time.process_time()
    report = simulate(plan, plant, models(0.05), seconds=15, seed=1)
    assert report.counters.sent > 20 * 100 and report.goodput > 0.8 * 30 * 1.8, "it works as it should"
    assert 20 / (time.process_time() - started_s) > 25


P1 = Path(__file__).parents[2] / "config" / "rosa" / "p1.yaml"


def invoke(*options: str) -> Result:
    return CliRunner().invoke(app, ["simulate", str(P1), "--robots", "4", "--seconds", "5", "--policy", "baseline3", *options])


def test_the_command_prints_json_and_nothing_else() -> None:
    result = invoke("--json", "--seed", "3", "--crash", "server_1@7", "--network", "latency=2,jitter=1,loss=0.01")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["policy"] == "baseline3" and report["seconds"] == 5.0
    assert report["tasks"].keys() == {"pick_action_only"} and 0 < report["goodput"] <= report["raw"]
    assert {"slo_attainment", "p50_ms", "p99_ms"} <= report["components"]["system1"].keys()
    assert {"server", "model", "utilisation"} <= report["servers"][0].keys()
    assert (
        invoke("--json", "--seed", "3", "--crash", "server_1@7", "--network", "latency=2,jitter=1,loss=0.01").stdout
        == result.stdout
    )


def test_the_command_prints_tables() -> None:
    result = invoke()
    assert result.exit_code == 0, result.output
    for word in ("pick_action_only", "system1", "server_1", "goodput"):
        assert word in result.output


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--crash", "server_1"), "--crash: cannot be read"),
        (("--crash", "@5"), "write server_1@10"),
        (("--crash", "server_99@5"), "nothing is named 'server_99'"),
        (("--network", "latency"), "--network: cannot be read"),
        (("--network", "latency=1,latency=2"), "'latency=2'"),
        (("--network", "loss=2"), "network.loss"),
        (("--network", "trace=/nowhere.csv"), "check the path"),
    ],
)
def test_the_command_says_what_it_cannot_read(options: tuple[str, ...], says: str) -> None:
    result = invoke(*options)
    assert isinstance(result.exception, ConfigurationError) and says in str(result.exception)
