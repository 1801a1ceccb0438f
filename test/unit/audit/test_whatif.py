"""What would have happened: a recorded factory in virtual time."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from ros2_rfm_serving.audit.whatif.case import Answered, Carried, Case, Outage, TimedEvent
from ros2_rfm_serving.audit.whatif.changes import SETTINGS, with_horizon, with_settings
from ros2_rfm_serving.audit.whatif.comparison import Row, Spread, _load, compare
from ros2_rfm_serving.audit.whatif.factories import Knowledge, with_factory
from ros2_rfm_serving.audit.whatif.gpu import Law
from ros2_rfm_serving.audit.whatif.network import RecordedWire, cuts
from ros2_rfm_serving.audit.whatif.placed import named_s, placed
from ros2_rfm_serving.audit.whatif.reading import Recording
from ros2_rfm_serving.audit.whatif.replay import replay
from ros2_rfm_serving.audit.whatif.servers import ServerRead
from ros2_rfm_serving.errors import ConfigurationError, RfmError
from ros2_rfm_serving.factory import Catalogue, parse_factory
from ros2_rfm_serving.faults import Direction
from ros2_rfm_serving.profiles import Profile, ProfileRow
from ros2_rfm_serving.robot import TaskGoal
from ros2_rfm_serving.robot.events import PauseRequested, ResumeRequested, TaskStarted
from ros2_rfm_serving.types import MONITOR, OutputKind, Route
from test.unit.audit import whatif_cases as made


def test_the_same_case_and_seed_give_the_same_figures_and_another_seed_others() -> None:
    case = made.case(8)
    (server,) = case.servers.values()
    uneven = tuple(batch._replace(seconds=batch.seconds * (0.9 + 0.01 * (i % 20))) for i, batch in enumerate(server.batches))
    case = replace(case, servers={server.name: replace(server, batches=uneven)})
    assert replay(case, 3) == replay(case, 3)
    assert replay(case, 3) != replay(case, 4)


def test_figures_are_those_of_a_factory_that_can_be_reckoned_by_hand() -> None:
    """One robot of 20 Hz, 8 steps of each chunk, a server that is never busy: 2.5 chunks/s, 10 ms of network and 70 ms of batch."""
    figures = replay(made.case(1), 0).figures
    assert figures.chunks_hz == pytest.approx(2.5, rel=0.05)
    assert figures.actions_hz == pytest.approx(made.RATE_HZ, rel=0.01)
    assert figures.round_trip_p50_s == pytest.approx(0.08, abs=1e-6)
    assert figures.held_share == 0.0 and figures.slo_attainment == 1.0 and figures.mean_batch == 1.0


def test_a_smaller_batch_costs_what_the_server_cannot_serve_then() -> None:
    case = made.case(16)
    whole, small = replay(case, 0).figures, replay(with_settings(case, "batch_size=2"), 0).figures
    assert small.chunks_hz < 0.7 * whole.chunks_hz and small.staleness_p50_s > 1.5 * whole.staleness_p50_s
    assert small.round_trip_p99_s > whole.round_trip_p99_s and small.mean_batch <= 2


def test_a_faster_gpu_answers_sooner_and_a_longer_horizon_asks_less_often() -> None:
    case = made.case(16)
    as_recorded = replay(case, 0).figures
    assert replay(with_settings(case, "speed=2"), 0).figures.round_trip_p50_s < 0.6 * as_recorded.round_trip_p50_s
    longer = replay(with_horizon(case, "static:16"), 0).figures
    assert longer.chunks_hz == pytest.approx(as_recorded.chunks_hz / 2, rel=0.1)
    assert longer.staleness_p50_s > as_recorded.staleness_p50_s


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_can_be_changed(setting: str) -> None:
    value = {"dispatch": "fifo", "batching": "wait", "mode": "sync"}.get(setting, "2")
    assert replay(with_settings(made.case(2), f"{setting}={value}"), 0).figures.chunks_hz > 0.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dispath=fifo", "did you mean `dispatch`"),
        ("dispatch=fif", "did you mean `fifo`"),
        ("batching=x", "fixed, saturation, wait"),
        ("batch_size=0", "give rows"),
        ("batch_size=2.5", "give rows"),
        ("speed", "NAME=VALUE"),
        ("speed=inf", "times faster"),
        ("mode=sync,mode=async", "set twice"),
    ],
)
def test_what_cannot_be_changed_is_refused_with_what_is_known(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        with_settings(made.case(1), text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("static:99", "give 1 to 32"),
        ("static:0", "at least 1"),
        ("static", "write static:8"),
        ("confidence:0.4", "does not say how sure"),
        ("nothing:1", "known here: static, confidence, curvature"),
    ],
)
def test_a_horizon_that_cannot_be_replayed_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        with_horizon(made.case(1), text)


def test_a_horizon_by_confidence_goes_by_what_was_recorded_of_each_chunk() -> None:
    """Models were sure of 4 rows of each chunk: every 4 steps a new one."""
    case = made.case(1)
    (server,) = case.servers.values()
    case = replace(case, servers={server.name: replace(server, confidences=((0.9,) * 4 + (0.1,) * 28,))})
    sure, anyway = replay(with_horizon(case, "confidence:0.4"), 0).figures, replay(with_horizon(case, "confidence:100"), 0).figures
    assert sure.chunks_hz > 1.5 * replay(case, 0).figures.chunks_hz > anyway.chunks_hz


def test_an_outage_is_lived_through_again() -> None:
    case = made.case(4)
    (server,) = case.servers.values()
    out = replace(case, servers={server.name: replace(server, outages=(Outage(8.0, 12.0),))})
    was, has = replay(case, 0).figures, replay(out, 0).figures
    assert was.held_share == 0.0 and has.held_share > 0.05
    assert has.chunks_hz < 0.9 * was.chunks_hz


def test_a_cut_network_is_cut_again_and_single_losses_are_drawn() -> None:
    carried = tuple(Carried(0.5 * i, math.inf if 16 <= i < 24 else 0.01) for i in range(40))
    assert cuts(carried) == [(8.0, 12.0)]
    lossy = tuple(Carried(0.5 * i, math.inf if i % 4 == 0 else 0.01) for i in range(40))
    assert not cuts(lossy)
    case = made.case(1)
    for network, less in ((carried, 0.9), (lossy, 0.99)):
        robots = {name: replace(robot, network=network) for name, robot in case.robots.items()}
        assert replay(replace(case, robots=robots), 0).figures.chunks_hz < less * replay(case, 0).figures.chunks_hz


def test_a_slow_request_has_a_slow_answer() -> None:
    """One in nine took 1 s, there and back: not two in nine half a second."""
    wire = RecordedWire([Carried(0.1 * i, 1.0 if i % 9 == 0 else 0.01) for i in range(900)], 0.0, Random(7))
    trips_s = []
    for step in range(900):
        (there,), (back,) = (wire.deliveries(way, 0.1 * step) for way in (Direction.UP, Direction.DOWN))
        trips_s.append(there.delay_s + back.delay_s)
    assert set(trips_s) == {0.01, 1.0} and 60 < trips_s.count(1.0) < 140


def test_parameters_that_changed_at_work_change_again_and_a_question_is_about_all_of_them() -> None:
    case = made.case(1)
    (robot,) = case.robots.values()
    short = replace(robot, later=((made.SECONDS / 2, replace(robot.config, max_action_age_s=0.25)),))
    changed = replace(case, robots={robot.name: short})
    was, has = replay(case, 0).figures, replay(changed, 0).figures
    assert has.held_share > was.held_share + 0.1 and has.staleness_p99_s <= was.staleness_p99_s
    assert (
        replay(with_settings(changed, "max_action_age_s=2"), 0).figures
        == replay(with_settings(case, "max_action_age_s=2"), 0).figures
    )


def test_a_paused_robot_pauses_and_a_judge_ends_the_attempt_when_it_did() -> None:
    case = made.case(1)
    (name,) = case.robots
    paused = replace(
        case.robots[name],
        commands=(*case.robots[name].commands, TimedEvent(8.0, PauseRequested()), TimedEvent(12.0, ResumeRequested())),
    )
    assert replay(replace(case, robots={name: paused}), 0).figures.actions_hz == pytest.approx(20.0 * 14 / 18, rel=0.05)
    assert replay(_judged(case), 0).figures.episodes == 3


def _judged(case: Case) -> Case:
    """Three tasks of 5 s, each said to be done by a monitor of 2 Hz after 4 s, though the next one is given when 6 s are over."""
    (name,) = case.robots
    goal = TaskGoal(task="push", instruction="push it", time_budget_s=60.0, reset=False)
    commands = tuple(TimedEvent(2.5 + 6.0 * i, TaskStarted(goal)) for i in range(3))
    answers = tuple(Answered(i + 1, 0.5 * k, MONITOR, ("done" if k >= 8 else "ongoing",)) for i in range(3) for k in range(12))
    judge = made.server("server_2")
    judge = replace(
        judge,
        placement=replace(judge.placement, model="judge", components=(MONITOR,)),
        contract=replace(made.CONTRACT, output=OutputKind.JUDGEMENT, action_names=(), chunk_length=0),
    )
    route = Route(robot=name, component=MONITOR, server="server_2", max_rate_hz=2.0, slo_s=0.5, task="push")
    schedule = replace(
        case.schedule, placements=(*case.schedule.placements, judge.placement), routes=(*case.schedule.routes, route)
    )
    robot = replace(case.robots[name], commands=commands, answers=answers)
    return replace(case, robots={name: robot}, servers={**case.servers, "server_2": judge}, schedules=((0.0, schedule),))


def test_batches_that_never_ran_are_extrapolated_and_said() -> None:
    case = made.case(16, rows=(1, 2))
    (server,) = case.servers.values()
    law = Law(server)
    assert [law.mean_s(rows) for rows in (1, 2, 3, 4)] == pytest.approx([made.batch_s(rows) for rows in (1, 2, 3, 4)])
    found = compare(Recording(case=case, figures=replay(case, 0).figures), None, "", seeds=2)
    assert any("server_1 never ran batches of 3, 4 rows" in sentence for sentence in found.unknown)


def test_a_profile_says_the_ratio_of_a_size_that_never_ran_to_one_that_did() -> None:
    server = made.server(rows=(1,), batch_size=4)
    assert Law(server, lambda rows: 0.01 * rows).mean_s(4) == pytest.approx(4 * made.batch_s(1))


def test_an_engine_that_always_fills_its_batches_takes_the_time_of_the_new_size() -> None:
    server = made.server(rows=(1, 2), batch_size=4)
    full = replace(server, batches=tuple(batch._replace(padded=4, seconds=0.1) for batch in server.batches))
    assert Law(full).mean_s(1) == pytest.approx(0.1)
    larger = replace(full, placement=replace(full.placement, batch_size=8))
    assert Law(larger, lambda rows: 0.02 * rows).mean_s(1) == pytest.approx(0.2)


def test_a_comparison_says_how_close_the_replay_comes_and_what_it_cannot_know() -> None:
    case = made.case(16)
    recorded = Recording(case=case, figures=replay(case, 99).figures)
    found = compare(recorded, with_settings(case, "batch_size=2"), "batch_size=2", seeds=3)
    rows = {row.name: row for row in found.rows}
    assert abs(rows["chunks_hz"].error) < 0.05 and abs(rows["held_share"].error) < 0.01
    assert rows["chunks_hz"].ratio < 0.9
    spread = rows["round_trip_p99_s"].replayed
    assert spread.low <= spread.median <= spread.high
    assert any("success is not predicted" in sentence for sentence in found.unknown)
    assert any("network carries" in sentence for sentence in found.unknown)
    assert found.to_json()["figures"]["chunks_hz"]["changed"]["median"] == rows["chunks_hz"].changed.median  # type: ignore[union-attr]


FACTORY = """
server_cluster: {num_servers: 2, gpu_type: any, dispatch: swift}
robot_fleet: [{task: push, num_robots: 6}]
push:
  pipeline: {action_period_ms: 800}
  execution: {mode: async}
  components: {system1: {model: smolvla, prompt: push it, slo_ms: 500}}
"""
CATALOGUE = """
models:
  smolvla:
    engine: emulated
    chunk_length: 32
    gpus: {any: {memory_gb: 1, load_s: 0, source: "a test"}}
"""


def _known(tmp_path: Path) -> Knowledge:
    (tmp_path / "models.yaml").write_text(CATALOGUE, encoding="utf-8")
    rows = [
        ProfileRow(
            "smolvla", "any", "fixed", size, share * size / made.batch_s(size), *(1e3 * made.batch_s(size) * (1 + share),) * 5
        )
        for size in (1, 2, 4)
        for share in (0.1, 0.5, 0.9)
    ]
    return Knowledge(profile=Profile.of(rows), catalogue=Catalogue.load(tmp_path / "models.yaml"))


def test_another_factory_is_planned_anew_with_what_was_recorded_of_its_robots_and_models(tmp_path: Path) -> None:
    case, known = made.case(4), _known(tmp_path)
    changed = with_factory(case, parse_factory(FACTORY), known)
    assert sorted(changed.robots) == [f"push_{i + 1}" for i in range(6)]
    assert set(changed.servers) <= {"server_1", "server_2"} and {s.config.dispatch for s in changed.servers.values()} == {"swift"}
    assert all(server.batches == case.servers["server_1"].batches for server in changed.servers.values())
    assert {robot.config.execution_horizon for robot in changed.robots.values()} == {16}
    assert any("2 robots of 'push' were not recorded" in gap for gap in changed.gaps)
    was, has = replay(case, 0, known.service_s).figures, replay(changed, 0, known.service_s).figures
    assert has.actions_hz == pytest.approx(1.5 * was.actions_hz, rel=0.05)
    assert has.chunks_hz == pytest.approx(0.75 * was.chunks_hz, rel=0.1)
    with pytest.raises(ConfigurationError, match=r"no robot of 'fold' was recorded.*push"):
        with_factory(case, parse_factory(FACTORY.replace("push", "fold")), known)


def test_a_declaration_that_no_recording_can_follow_is_said(tmp_path: Path) -> None:
    """Robots tick when they did, whatever rate is declared; what overflows ran elsewhere, in no recorded time."""
    text = FACTORY.replace("gpu_type: any", "gpu_type: any, overflow: {url: 'ws://elsewhere:8000', round_trip_ms: 20}")
    world = "push:\n  world: {simulator: metaworld, task: push, control_rate_hz: 50}\n"
    case, known = made.case(4), _known(tmp_path)
    assert not [gap for gap in with_factory(case, parse_factory(FACTORY), known).gaps if "replayed" in gap or "applied" in gap]
    gaps = with_factory(case, parse_factory(text.replace("push:\n", world)), known).gaps
    assert any("'push'" in gap and "control_rate_hz 50" in gap and "not applied" in gap and "at 20" in gap for gap in gaps)
    assert any("overflow" in gap and "not replayed" in gap for gap in gaps)


def test_robots_that_were_not_recorded_ask_at_other_times_than_those_that_they_do_as(tmp_path: Path) -> None:
    """Within the 0.8 s for which a chunk is executed, not within one control period."""
    changed = with_factory(made.case(1), parse_factory(FACTORY), _known(tmp_path))
    later_s = [robot.ticks[0].at_s - changed.robots["push_1"].ticks[0].at_s for robot in changed.robots.values()]
    assert max(later_s) > 0.3 and max(later_s) < 0.8 and len(set(later_s)) == 6


def test_requests_that_are_batched_continuously_take_what_as_many_at_once_took() -> None:
    """Alone 70 ms, two at once 80 ms each, and so on: 16 robots that ask 2.5 times a second are three or four at once."""
    case = made.case(16, rows=(1, 2, 3, 4, 5, 6))
    (server,) = case.servers.values()
    config = replace(server.config, batch_size=1, max_concurrent=64)
    alone = replace(server, config=config, placement=replace(server.placement, batch_size=1))
    figures = replay(replace(case, servers={server.name: alone}), 0).figures
    assert figures.mean_batch == 1.0 and figures.chunks_hz == pytest.approx(40.0, rel=0.02)
    assert 0.08 < figures.round_trip_p50_s < 0.15


def test_the_load_of_a_network_without_a_chunk_is_no_ratio() -> None:
    none, some = (Spread(median=rate, low=rate, high=rate) for rate in (0.0, 4.0))
    said = [_load([Row(name="chunks_hz", recorded=2.9, replayed=one, changed=none)]) for one in (none, some)]
    assert said[0] == [] and "0.00 times as many" in said[1][0]


def test_a_replay_that_serves_nobody_is_an_error_and_no_table() -> None:
    case = made.case(1)
    idle = Recording(case=replace(case, servers={}, gaps=("server_1 is missing",)), figures=replay(case, 0).figures)
    with pytest.raises(RfmError, match=r"2\.5 chunks/s were recorded, and a replay of the same has none.*server_1 is missing"):
        compare(idle, None, "", seeds=1)


def test_a_server_is_out_of_order_only_while_a_schedule_names_it() -> None:
    """It falls silent at 6 s; the schedules of 8 s to 12 s do without it, as its process ends for good at 14 s."""
    case = made.case(1)
    names = {0.0: "server_1", 4.0: "server_1", 8.0: "server_2", 12.0: "server_1", 16.0: "server_2"}
    schedules = [
        (at_s, replace(case.schedule, epoch=i, placements=(made.server(name).placement,)))
        for i, (at_s, name) in enumerate(names.items())
    ]
    assert named_s("server_1", schedules) == [(0.0, 8.0), (12.0, 16.0)]
    assert named_s("server_2", schedules) == [(8.0, 12.0), (16.0, math.inf)]
    one = made.server()
    read = ServerRead(one.config, one.contract, batches=list(one.batches))
    found = placed(schedules, {"server_1": read}, {"server_1": [Outage(6.0, 9.0), Outage(14.0, 20.0)]}, [])
    assert found.servers["server_1"].outages == (Outage(6.0, 8.0), Outage(14.0, 16.0))
    assert set(found.servers) == {"server_1"} and "server_2 was planned" in found.gaps[0]
