"""Journals of robots as a case: what is read from records is what the brain itself counted."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.whatif.case import Case, TimedEvent
from ros2_rfm_serving.audit.whatif.chains import Chain, chains_of
from ros2_rfm_serving.audit.whatif.changes import with_settings
from ros2_rfm_serving.audit.whatif.reading import recording
from ros2_rfm_serving.audit.whatif.robots import RobotRead, robots_of
from ros2_rfm_serving.audit.whatif.servers import outages_of, servers_of
from ros2_rfm_serving.engines.emulated import EmulatedEngine, EmulatedSpec, EmulatedSteps
from ros2_rfm_serving.errors import ConfigurationError, RfmError
from ros2_rfm_serving.profiles import FixedService, SteppedService
from ros2_rfm_serving.robot import TaskGoal, events
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.server.events import ServerConfigurationChanged
from ros2_rfm_serving.types import MONITOR, SYSTEM1, ObservationRequest, RequestId, SessionRequest, empty
from test.unit.audit.recordings import recorded_world, run
from test.unit.audit.servers import Kept
from test.unit.audit.story import Log
from test.unit.robot.robots import CONFIG


@pytest.fixture(scope="module")
def found() -> tuple[object, RobotRead]:
    world, recorder = recorded_world(system1=0.5, monitor=0.5)
    run(world, recorder, 8.0)
    world.brain.pause(world.now_s)
    run(world, recorder, 1.0)
    world.brain.resume(world.now_s)
    run(world, recorder, 3.0)
    (read,) = robots_of(chains_of(recorder.pages), {}).values()
    return world, read


def test_what_was_executed_and_answered_is_what_the_brain_counted(found: tuple[object, RobotRead]) -> None:
    world, read = found
    brain = world.brain  # type: ignore[attr-defined]
    assert len(read.log.executed) == sum(brain.stalenesses.counts) > 100
    assert sum(age_s for _, age_s in read.log.executed) == pytest.approx(brain.stalenesses.sum)
    for component in (SYSTEM1, MONITOR):
        answered = [waited_s for _, waited_s in read.log.sent[component] if waited_s < math.inf]
        assert len(answered) == sum(brain.figures[component].round_trips.counts) > 5
        assert sum(answered) == pytest.approx(brain.figures[component].round_trips.sum)


def test_a_case_has_ticks_tasks_words_and_delays(found: tuple[object, RobotRead]) -> None:
    _, read = found
    case = read.case(lambda key, asked: False)
    kinds = [type(one.event) for one in case.commands]
    assert kinds == [events.TaskStarted, events.PauseRequested, events.ResumeRequested]
    assert case.commands[0].event.goal.task == case.task
    assert len(case.ticks) > 200 and all(tick.may_act for tick in case.ticks[-5:])
    assert {answer.component for answer in case.answers} == {MONITOR} and case.answers[0].words == ("ongoing",)
    delays_s = [carried.both_ways_s for carried in case.network if carried.both_ways_s < math.inf]
    assert len(delays_s) > 20 and all(0.0 <= delay_s < 1.0 for delay_s in delays_s)
    assert len(read.schedules) == 1 and read.schedules[0][1].routes_of(case.name)


def test_a_server_that_was_silent_was_out_of_order_until_it_was_heard_again() -> None:
    ready = [(0.5 * i, True) for i in range(1, 20)]
    assert outages_of(ready, 10.0) == []
    ((from_s, until_s),) = outages_of([one for one in ready if not 3.0 < one[0] < 8.0], 10.0)
    assert (from_s, until_s) == (3.25, 8.0)
    ((from_s, until_s),) = outages_of([(at_s, at_s >= 5.0) for at_s, _ in ready], 10.0)
    assert (from_s, until_s) == (0.0, 5.0)
    ((from_s, until_s),) = outages_of(ready[:8], 10.0)
    assert (from_s, until_s) == (4.25, 10.0)


def test_a_server_has_the_batches_delays_and_contract_that_it_noted() -> None:
    spent_s: list[float] = []
    engine = EmulatedEngine(EmulatedSpec(model="m", batch_sizes=(4,)), FixedService(base_s=0.06, per_row_s=0.01), spent_s.append)
    server = ModelServer(ServerConfig(name="s", batch_size=4, dispatch="swift"), engine)
    kept = Kept(server)
    grants = [server.open_session(SessionRequest(robot=f"r{i}", component=SYSTEM1)) for i in range(3)]
    for now_s in (1.0, 2.0):
        for i, grant in enumerate(grants[: 1 + int(now_s)]):
            number = RequestId(robot=f"r{i}", component=SYSTEM1, session_epoch=grant.session_epoch, episode=1, sequence=int(now_s))
            server.submit(ObservationRequest(id=number, stamp_ns=0, instruction="", state=empty(0)), now_s - 0.01)
        work = server.loop.begin(now_s)
        assert work is not None
        server.loop.complete(work, server.loop.run(work), now_s + spent_s[-1])
    kept.records()
    (read,) = servers_of(chains_of(kept.pages)).values()
    assert read.config.dispatch == "swift" and read.contract.model == "emulated m"
    assert [(batch.rows, batch.padded) for batch in read.batches] == [(2, 4), (3, 4)]
    assert [batch.seconds for batch in read.batches] == pytest.approx([0.1, 0.1])
    assert ("r0", SYSTEM1, grants[0].session_epoch, 2) in read.arrived and not read.overflowed
    kept.pages[:] = [
        replace(page, lines=tuple(line.replace(b'"engine":0', b'"engine":1') for line in page.lines)) for page in kept.pages
    ]
    (elsewhere,) = servers_of(chains_of(kept.pages)).values()
    assert elsewhere.overflowed == 2 and not elsewhere.batches


def test_parameters_that_were_given_anew_are_others_only_where_they_differ() -> None:
    given = ServerConfig(name="s", batch_size=4, first_epoch=7)
    server = ModelServer(given, EmulatedEngine(EmulatedSpec(model="m", batch_sizes=(4,)), lambda rows: 0.0, lambda seconds: None))
    kept = Kept(server)
    kept.records()
    (read,) = servers_of(chains_of(kept.pages)).values()
    (chain,) = chains_of(kept.pages)

    def reconfigured(config: ServerConfig) -> bool:
        record = {"n": 9, "t": 1.0, "kind": "event", "event": codec.plain(ServerConfigurationChanged(config)), "result": None}
        read.reconfigured = False
        read.read(replace(chain, records=[*chain.records, record]))
        return read.reconfigured

    assert not reconfigured(given) and not reconfigured(replace(given, first_epoch=8))
    assert reconfigured(replace(given, dispatch="swift"))


def test_rows_that_went_step_by_step_are_read_as_requests_side_by_side() -> None:
    now_s = [0.0]

    def spend(seconds: float) -> None:
        now_s[0] += seconds

    costs = {"perception_base_s": 0.01, "perception_per_row_s": 0.01, "step_base_s": 0.02, "step_per_row_s": 0.0}
    steps = SteppedService(**costs, num_steps=3, sizes=(1, 2, 4))
    engine = EmulatedSteps(EmulatedSpec(model="m", batch_sizes=(4,)), lambda rows: 0.0, spend, steps)
    server = ModelServer(ServerConfig(name="s", batch_size=4, batching="continuous"), engine)
    kept = Kept(server)
    for robot in ("r0", "r1"):
        epoch = server.open_session(SessionRequest(robot=robot, component=SYSTEM1)).session_epoch
        number = RequestId(robot=robot, component=SYSTEM1, session_epoch=epoch, episode=1, sequence=1)
        server.submit(ObservationRequest(id=number, stamp_ns=0, instruction="", state=empty(0)), now_s[0])
        if robot == "r0":
            server.loop.step(lambda: now_s[0])
    replies = [reply for _ in range(8) for reply in server.loop.step(lambda: now_s[0])]
    kept.records()
    (read,) = servers_of(chains_of(kept.pages)).values()
    assert len(replies) == 2 and read.config.max_concurrent == 4 and read.config.batching == "fixed"
    assert [batch.rows for batch in read.batches] == [1, 1] and not read.pauses_s
    assert all(batch.seconds >= 0.08 for batch in read.batches)


def test_batching_continuously_cannot_be_asked_of_what_was_recorded_otherwise() -> None:
    with pytest.raises(ConfigurationError, match="fixed, saturation or wait"):
        with_settings(Case.__new__(Case), "batching=continuous")


@pytest.mark.parametrize(
    "record",
    [
        {"kind": "tick"},
        {"kind": "event", "event": {"~": "ReplyReceived", "reply": None}, "result": True},
        {"kind": "snapshot", "format": 2, "state": 7},
    ],
)
def test_a_recording_that_nobody_wrote_so_is_refused_with_the_reason(record: dict[str, Any]) -> None:
    log = Log("robot/r1", "robot", {"config": codec.plain(CONFIG)})
    log.note(record["kind"], 1.0, **{key: value for key, value in record.items() if key != "kind"})
    bag = SimpleNamespace(path="shift", pages=lambda: [log.page()], messages=lambda *kinds: [])
    with pytest.raises(RfmError, match=r"shift: its audit log cannot be read.*audit verify"):
        recording(bag)  # type: ignore[arg-type]


def test_a_retry_has_a_reset_of_its_own_and_what_was_heard_of_a_lost_server_is_kept() -> None:
    goal = TaskGoal(task="push", instruction="push it", time_budget_s=15.0)

    def became(t: float, before: str, after: str) -> dict[str, Any]:
        return {"t": t, "kind": "transition", "from": {"phase": before}, "to": {"phase": after}, "reason": ""}

    def happened(t: float, event: events.Event) -> dict[str, Any]:
        return {"t": t, "kind": "event", "event": codec.plain(event), "result": None}

    records = [
        {"t": 0.0, "kind": "begin", "config": codec.plain(CONFIG)},
        {"t": 0.0, "kind": "snapshot", "state": {"episode": 0, "task": None, "paused": False, "schedule_follower": None}},
        happened(1.0, events.TaskStarted(goal)),
        became(1.0, "IDLE", "RESETTING"),
        happened(3.0, events.ResetFinished(True, "")),
        became(3.0, "RESETTING", "EXECUTING"),
        happened(8.0, events.ConfigurationChanged(replace(CONFIG, max_action_age_s=0.5))),
        happened(9.0, events.ServerLost("server_1", "silent")),
        became(18.0, "EXECUTING", "RESETTING"),
        happened(18.5, events.ResetFinished(True, "")),
    ]
    chain = Chain("robot/r1", "robot", 0.0, records=records)  # type: ignore[arg-type]
    (read,) = robots_of([chain], {}).values()
    case = read.case(lambda key, asked: False)
    assert case.resets_s == {1: pytest.approx(2.0), 2: pytest.approx(0.5)} and read.log.episodes == [1.0, 18.0]
    assert [(at_s, config.max_action_age_s) for at_s, config in case.later] == [(8.0, 0.5)]
    assert [one.event for one in case.commands] == [events.TaskStarted(goal)]
    assert case.server_events == (TimedEvent(9.0, events.ServerLost("server_1", "silent")),)
