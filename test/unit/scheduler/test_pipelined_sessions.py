"""Robots of pipelined sessions (AURAS §4): one request per frame, several in flight, each answered some frames later."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ros2_rfm_serving.factory import Catalogue, Factory, parse_factory
from ros2_rfm_serving.profiles import Profile, SteppedService, load_profiles
from ros2_rfm_serving.scheduler import plan_factory, to_schedule
from ros2_rfm_serving.scheduler.build_problem import curves_of, problem_of
from ros2_rfm_serving.scheduler.prediction.clients import ClientGroup
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.equilibrium import Equilibrium
from ros2_rfm_serving.scheduler.prediction.framed_queue import framed_waits, stages_of
from ros2_rfm_serving.scheduler.prediction.plan_messages import unlucky
from ros2_rfm_serving.scheduler.prediction.rates import HostedServer
from ros2_rfm_serving.scheduler.prediction.responses import Responses
from ros2_rfm_serving.scheduler.slo import Slo
from ros2_rfm_serving.scheduler.solution import ServerSolution
from ros2_rfm_serving.simulation import Report, simulate
from ros2_rfm_serving.types import PipelineConfig

LAW = SteppedService(
    perception_base_s=0.008,
    perception_per_row_s=0.002,
    step_base_s=0.003,
    step_per_row_s=0.001,
    num_steps=10,
    sizes=(1, 2, 4, 8, 16),
)
ALONE = ClientGroup(
    1,
    0.2,
    0.2,
    overlapped=True,
    step_s=0.2 / 8,
    chunk_s=0.6,
    slo_s=1.0,
    pipelining=PipelineConfig(pp_perception=1, pp_generation=2),
)
TWO_STAGES = "{pp_perception: 1, pp_generation: 1}"
OLD = "{pp_perception: 2, pp_generation: 3, fetch_offset: -1}"
"""An answer's end saw what is two frames old, and the server and the network have only the third that a chunk lasts."""


@pytest.fixture(scope="module")
def known(repository: Path) -> tuple[Profile, Catalogue]:
    folder = repository / "config" / "profiles"
    return load_profiles(folder), Catalogue.load(folder / "models.yaml")


def fleet(
    robots: int, period_ms: float, slo_ms: float, stages: str, *, servers: int = 1, percentile: int = 95, network: str = "{}"
) -> Factory:
    return parse_factory(f"""
server_cluster: {{num_servers: {servers}, gpu_type: NVIDIA H200, batching: continuous}}
robot_fleet: [{{task: carry, num_robots: {robots}, network: {network}}}]
carry:
  pipeline: {{action_period_ms: {period_ms}, system2_to_system1_call_ratio: 0}}
  execution: {{mode: async, pipelining: {stages}}}
  components: {{system1: {{model: physical-intelligence/pi0.5, slo_ms: {slo_ms}, percentile: {percentile}}}}}
""")


def in_virtual_time(factory: Factory, known: tuple[Profile, Catalogue], seed: int = 0) -> tuple[float, Report]:
    """What was expected, and what came."""
    profile, catalogue = known
    plan = plan_factory(factory, profile, catalogue, explained=False)
    assert plan.feasible, plan.problems
    return plan.expected, simulate(to_schedule(plan, factory.robots, epoch=1), factory, catalogue, profile, seconds=12, seed=seed)


def test_a_request_takes_the_frames_after_its_own() -> None:
    """The perception of the last of them, for which the others wait, and half of the solver steps of both rows that have some."""
    found = framed_waits((ALONE,), LAW).members[0]
    last_s = LAW.perception_s(1) + 5 * LAW.step_s(2)
    assert found.mean_s == pytest.approx(2 * 0.2 + last_s, rel=0.01)
    assert found.acts_hz == pytest.approx(5.0, rel=0.01)


def test_as_many_are_in_flight_as_were_agreed_upon() -> None:
    """Frames that last for less than the server takes: it works on three requests at once, and answers sooner than one after the
    other."""
    hurried = replace(ALONE, period_s=0.01, think_s=0.01, step_s=0.0, chunk_s=1.0)
    found = framed_waits((hurried,), LAW).members[0]
    one_after_the_other_hz = 1.0 / LAW.mean_s(1)
    assert found.acts_hz * found.mean_s == pytest.approx(3.0, rel=0.02)
    assert found.acts_hz > 1.2 * one_after_the_other_hz


def test_steps_of_each_frame_after_the_own() -> None:
    assert stages_of(PipelineConfig(pp_perception=1, pp_generation=1), 10) == (10,)
    assert stages_of(PipelineConfig(pp_perception=3, pp_generation=2), 10) == (0, 0, 5, 5)


def test_an_slo_that_its_frames_take_up_is_no_servers_to_keep(known: tuple[Profile, Catalogue]) -> None:
    """A request is answered in the next frame, 442 ms later: 120 ms were called feasible, and none was in time."""
    network = "{round_trip_ms: 16.5, jitter_ms: 9.7}"
    short, long = (fleet(5, 442, slo_ms, TWO_STAGES, network=network) for slo_ms in (120, 600))
    plan = plan_factory(short, *known)
    assert not plan.feasible and "next frames (442 ms)" in plan.problems[0] and "raise slo_ms above 535" in plan.problems[0]
    expected, report = in_virtual_time(long, known)
    assert report.raw == pytest.approx(expected, rel=0.02)
    assert report.components["system1"].slo_attainment > 0.95


def test_a_server_takes_so_many_sessions(known: tuple[Profile, Catalogue]) -> None:
    """15 rows: seven robots with two requests in flight each; the eighth was promised five actions/s, and refused."""
    crowded = plan_factory(fleet(8, 200, 1000, TWO_STAGES), *known)
    assert not crowded.feasible and any("one server takes 7 pipelined sessions" in text for text in crowded.problems)
    expected, report = in_virtual_time(fleet(8, 200, 1000, TWO_STAGES, servers=2), known)
    assert report.raw == pytest.approx(expected, rel=0.02) and expected == pytest.approx(40.0, rel=0.02)


def test_more_stages_than_a_server_has_rows(known: tuple[Profile, Catalogue]) -> None:
    plan = plan_factory(fleet(1, 200, 9000, "{pp_perception: 8, pp_generation: 8}"), *known)
    assert not plan.feasible and "keeps 16 rows in flight" in plan.problems[0]


def test_batches_that_begin_and_end_together_hold_no_sessions(known: tuple[Profile, Catalogue]) -> None:
    model, gpu_type = "physical-intelligence/pi0.5", "NVIDIA H200"
    curves = Curves(known[0], [model], [gpu_type], [(model, gpu_type)])
    one_by_one, in_frames = Slo(0.9), Slo(0.9, frames_s=0.2)
    fixed = [config for config in curves.all if config.batching == "fixed"]
    assert fixed and all(curves.capacity_hz(c, one_by_one) for c in fixed)
    assert not any(look(c, in_frames) for c in fixed for look in (curves.capacity_hz, curves.sought_hz, curves.queued_hz))


def test_a_promise_that_depends_on_the_start_says_so(known: tuple[Profile, Catalogue]) -> None:
    """Pipelined sessions keep the phases of their start: after one of fourteen these six meet at each frame."""
    profile, catalogue = known
    network = "{round_trip_ms: 16.5, jitter_ms: 3}"
    problem = problem_of(fleet(6, 442, 565, TWO_STAGES, network=network), Counter(carry=6), profile, catalogue)
    curves, pace = curves_of(problem, profile), (1 / 0.442,)
    host = HostedServer(curves.all[0], ((0, 6),))
    share = Responses(problem, curves, (host,), pace, Equilibrium(pace, {}, frozenset())).unlucky(host)
    assert 0.0 < share < 0.1
    judged = ServerSolution(
        server="server_1",
        gpu_type=host.config.gpu_type,
        model=host.config.model,
        batching=host.config.batching,
        batch_size=1,
        streams=(),
        rate_hz=0.0,
        mean_s=0.0,
        p99_s=0.0,
        unlucky=share,
    )
    assert [f"after {100 * share:.0f} % of the ways to start" in note for note in unlucky([judged])] == [True]


@pytest.mark.parametrize(("robots", "stages"), [(3, "{pp_perception: 1, pp_generation: 4}"), (7, TWO_STAGES)])
def test_robots_act_as_expected_where_answers_take_longer_than_frames(
    robots: int, stages: str, known: tuple[Profile, Catalogue]
) -> None:
    """By the curve a robot acts as often as it is answered, as if its requests came one after the other: 1.09 to 1.63 of that was
    acted."""
    expected, report = in_virtual_time(fleet(robots, 60, 1000, stages), known)
    assert report.raw == pytest.approx(expected, rel=0.08)


def test_a_model_that_was_measured_in_whole_batches_alone(known: tuple[Profile, Catalogue]) -> None:
    """How its servers batch is declared, and says whether they have rows for such sessions: the plan was infeasible."""
    factory = parse_factory(f"""
server_cluster: {{num_servers: 1, gpu_type: CPU, batching: continuous}}
robot_fleet: [{{task: push, num_robots: 1}}]
push:
  pipeline: {{action_period_ms: 200}}
  execution: {{mode: async, pipelining: {TWO_STAGES}}}
  components: {{system1: {{model: rfm/metaworld-flow, slo_ms: 2000}}}}
""")
    assert plan_factory(factory, *known).feasible


def test_robots_that_stand_between_answers_ask_later(known: tuple[Profile, Catalogue]) -> None:
    """An answer whose end saw what is two frames old leaves one frame of a chunk of three: who is answered a step later than usual
    stands, and its steps begin anew with the answer. Of 6.67 that were expected 6.0 actions/s were acted."""
    expected, report = in_virtual_time(fleet(1, 150, 748, "{pp_perception: 2, pp_generation: 2, fetch_offset: -1}"), known)
    assert report.raw == pytest.approx(expected, rel=0.03)
    assert expected < 0.95 / 0.15


def test_observations_older_than_a_chunk_lasts(known: tuple[Profile, Catalogue]) -> None:
    """Robots stand then before they ask, requests in flight wait for that, and what was asked before is refused: a plan was called
    feasible with which none was in time."""
    plan = plan_factory(fleet(1, 50, 400, OLD, network="{round_trip_ms: 40}"), *known)
    assert not plan.feasible and "robots refuse answers, for observations are older than a chunk lasts" in plan.problems[0]


def test_robots_that_refuse_answers_go_on_asking(known: tuple[Profile, Catalogue]) -> None:
    """In virtual time as a robot does that ticks all the time; a third of the answers count. Until the next one was late nobody
    asked: 0.9 actions/s, and the queue says 4.1."""
    profile, catalogue = known
    near, far = fleet(1, 50, 2000, OLD), fleet(1, 50, 2000, OLD, network="{round_trip_ms: 40}")
    plan = plan_factory(near, profile, catalogue, explained=False)
    assert plan.feasible
    report = simulate(to_schedule(plan, far.robots, epoch=1), far, catalogue, profile, seconds=12, seed=0)
    problem = problem_of(far, Counter(carry=1), profile, catalogue)
    curves, pace = curves_of(problem, profile), (20.0,)
    host = HostedServer(curves.all[0], ((0, 1),))
    acts_hz = Responses(problem, curves, (host,), pace, Equilibrium(pace, {}, frozenset())).acts_hz(host)[0]
    assert report.raw == pytest.approx(acts_hz, rel=0.05)
    assert report.components["system1"].slo_attainment == pytest.approx(1 / 3, abs=0.05)
