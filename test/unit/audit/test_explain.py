"""Why a robot did what it did, out of an audit log."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.chain import Page
from ros2_rfm_serving.audit.explain.explain import explain, window
from ros2_rfm_serving.audit.explain.explanation import Explanation
from ros2_rfm_serving.audit.explain.moments import moment_of
from ros2_rfm_serving.audit.log import AuditLog
from ros2_rfm_serving.audit.report.incidents import incidents
from ros2_rfm_serving.audit.report.tracks import Tracks
from ros2_rfm_serving.errors import ConfigurationError, RfmError
from ros2_rfm_serving.types import RequestId
from test.unit.audit.story import EPOCH_S, Log, answer, picture, readings, request, robot, row, tick, transition


def identity(sequence: int, name: str = "push_1", component: str = "system1") -> Any:
    return codec.plain(RequestId(robot=name, component=component, session_epoch=3, episode=1, sequence=sequence))


def asks(log: Log, t_s: float, sequence: int, command: object = None, **more: Any) -> None:
    why = {"source": "none", "reason": "waits for its chunk"} if command is None else row(3, sequence - 1)
    images = (picture("front", b"f" * 90), picture("side", b"s" * 90))
    asked = request(sequence, **more)
    tick(log, t_s, command, why, sensors=readings(t_s + log.ahead_s, t_s, images), requests=[asked])


def served(server: Log, t_s: float, sequence: int) -> None:
    enqueued = {"~": "RequestEnqueued", "request": {"~": "InferenceRequest", "id": identity(sequence)}}
    server.note("request", t_s, event=enqueued, now_s=t_s, noise_seed=[77, 1, sequence], result=False)
    batch = {"batch": 5, "requests": [identity(sequence), identity(9, "push_2"), identity(4, "door_1", "monitor")]}
    polled = {"~": "EnginePolled", "engine": 1}
    server.note("batch", t_s + 0.012, event=polled, now_s=t_s + 0.012, result=batch, padded_rows=4)
    received = {"~": "AnswerReceived", "batch": 5, "position": 0}
    server.note("reply", t_s + 0.072, event=received, request=identity(sequence), result={"stamp_ns": 0})


def shift() -> list[Log]:
    """Half a second of a robot that executes chunks, is told to pause, and whose server is gone then."""
    log, server, scheduler = (
        robot(),
        Log("server/server_1", "server", ahead_s=500.0),
        Log("scheduler", "scheduler", {"scheduler": 11}),
    )
    scheduler.note("plan", 0.5, reason="server_2 was lost", published=True, schedule={"epoch": 4, "scheduler": 0})
    scheduler.note("plan", 0.65, reason="not worth it", published=False, schedule={"epoch": 4, "scheduler": 0})
    log.event(0.6, "TaskStarted", goal={"task": "push"})
    log.event(0.7, "ScheduleReceived", result=1, schedule={"epoch": 4, "scheduler": 11})
    transition(log, 0.8, "STREAMING", "")
    asks(log, 1.0, 1)
    served(server, 1.004, 1)
    answer(log, 1.08, 1)
    tick(log, 1.1, [0.1, 1.0], row(0, 1, limited_from=codec.plain([0.4, 1.0])))
    tick(log, 1.15, None, {"source": "none", "reason": "no control period yet"})
    asks(log, 1.2, 2, [0.2, 1.0])
    server.note("transition", 1.25, **{"from": "READY", "to": "HUNG", "reason": "inference does not come back"})
    log.event(1.9, "ServerLost", server="server_1", problem="silent for 0.5 s")
    transition(log, 1.9, "STALLED", "server_1 is lost")
    for step in range(4):
        tick(log, 2.0 + step / 10, None, {"source": "fallback", "fallback": "hold", "reason": "server_1 is lost"})
    log.note("operator_command", 2.35, command="pause", operator="anna", answer="paused", done=True)
    tick(log, 2.4, None, {"source": "fallback", "fallback": "hold", "reason": "paused by a person"})
    return [log, server, scheduler]


def at(t_s: float, *logs: Log, name: str = "push_1") -> Explanation:
    log = AuditLog([one.page() for one in (logs or shift())], [window(EPOCH_S + t_s)])
    return explain(log, name, EPOCH_S + t_s)


def said(found: Explanation, name: str) -> str:
    return "\n".join(next(part for part in found.parts if part.name == name).lines)


def test_an_executed_row_is_followed_back_to_its_images() -> None:
    found = at(1.12)
    assert found.headline == "executed row 0 of a chunk of server_1, changed by its limits"
    assert [image.camera for image in found.images] == ["front", "side"]
    assert "STREAMING, executing since" in said(found, "robot") and "task push" in said(found, "robot")
    assert "session 3, episode 1, sequence 1 to server_1, sent 100 ms before" in said(found, "request")
    assert "expected delay 2 steps, prefix of 4 rows" in said(found, "request")
    assert "request to chunk 80 ms; 8 ms of it on the way, 72 ms on the server" in said(found, "network")
    assert "out 4 ms, back 4 ms" in said(found, "network")
    assert "server_1: waited 12 ms, inference 60 ms, load 40%" in said(found, "server")
    assert "batch 5: 3 rows, computed as 4; with push_2 (system1), door_1 (monitor)" in said(found, "server")
    assert "SHA-256 abc123" in said(found, "model") and "[77, 1, 1]" in said(found, "model")
    assert "of 6 rows, came 20 ms before; execute 4 of them" in said(found, "chunk")
    assert "limits changed it; wanted was" in said(found, "command")
    assert "the observation behind it was 200 ms old" in said(found, "command")
    assert "epoch 4" in said(found, "schedule") and "server_2 was lost" in said(found, "schedule")
    assert "no operator gave a command" in said(found, "people")


def test_a_period_without_a_decision_is_passed_over() -> None:
    assert at(1.16).headline.startswith("executed row 0")


def test_a_hold_says_why_since_when_and_what_was_being_waited_for() -> None:
    found = at(2.31)
    assert found.headline == "held (hold): server_1 is lost"
    command = said(found, "command")
    assert "no action was executed: server_1 is lost" in command and "300 ms, 4 control periods" in command
    assert "STALLED, executing since" in said(found, "robot") and "(before: STREAMING, executing): server_1 is lost" in said(
        found, "robot"
    )
    assert "none: no answer after 1.10 s" in said(found, "chunk")
    assert "it has no record of the request" in said(found, "server") and "HUNG since" in said(found, "server")
    assert "server lost (server server_1, problem silent for 0.5 s)" in said(found, "events")


def test_the_end_of_a_run_without_a_farewell_is_a_fact_of_its_own() -> None:
    """A server that is killed, another one of its name later; and the robot's own end."""
    log, first = robot(), Log("server/server_1", "server", ahead_s=500.0)
    first.note("transition", 0.5, **{"from": "LOADING", "to": "READY", "reason": "the first one has loaded"})
    second = Log("server/server_1", "server", run=8, begins_s=20.0)
    second.note("transition", 21.0, **{"from": "LOADING", "to": "READY", "reason": "the second one has loaded"})
    second.note("sealed", 26.0, stamp=EPOCH_S + 26.0, records=2)
    second.note("closed", 30.0, stamp=EPOCH_S + 30.0, records=2, why="the end of the process")
    asks(log, 1.0, 1)
    for number in range(40):
        tick(log, 1.1 + number, None, {"source": "fallback", "fallback": "hold", "reason": "server_1 is lost"})
    pages = [one.page() for one in (log, first, second, Log("robot/push_2", "robot", begins_s=60.0))]

    def found(t_s: float) -> Explanation:
        return explain(AuditLog(pages, [window(EPOCH_S + t_s)]), "push_1", EPOCH_S + t_s)

    def server(t_s: float) -> tuple[str, bool]:
        facts = found(t_s).as_json()["processes"]["presence"]["server/server_1"]
        return facts["presence"], facts["certain"]

    words = said(found(4.1), "server")
    assert "its records end 3.60 s before (" in words and ", without an end; the next ones begin 15.90 s after" in words
    assert "the first one has loaded" in words and "second" not in words
    assert server(4.1) == ("without an end", False) and server(8.1) == ("without an end", True)
    assert server(25.1) == ("running", True)
    assert server(32.1) == ("ended", True) and "the end of the process" in said(found(32.1), "processes")
    assert found(50.1).headline.startswith("its records end 10.00 s before (")
    with pytest.raises(ConfigurationError, match=r"around .*: its records end 59\.90 s before \(.*\), without an end"):
        found(100.0)


def test_a_process_that_wrote_nothing_for_a_while_and_went_on_has_not_ended() -> None:
    log, server = robot(), Log("server/server_1", "server")
    server.note("sealed", 1.0, stamp=EPOCH_S + 1.0, records=1)
    server.note("sealed", 41.0, stamp=EPOCH_S + 41.0, records=2)
    tick(log, 20.0, None, {"source": "fallback", "fallback": "hold", "reason": "server_1 is lost"})
    presence = at(20.0, log, server).as_json()["processes"]["presence"]["server/server_1"]
    assert presence["presence"] == "silent" and "it wrote nothing from" in presence["text"] and "(40.00 s)" in presence["text"]


def test_what_the_recorder_lost_is_no_end() -> None:
    """A disk that is full: one server goes on behind it, the other one may or may not."""
    log, server, other = robot(), Log("server/server_1", "server"), Log("server/server_2", "server")
    server.note("sealed", 1.0, stamp=EPOCH_S + 1.0, records=1)
    first = server.page()
    for number in range(30):
        server.note("transition", 2.0 + number, **{"from": "READY", "to": "READY", "reason": "lost"})
    server.page()
    server.note("sealed", 41.0, stamp=EPOCH_S + 41.0, records=32)
    recorder = Log("recorder/night", "recorder")
    recorder.note("lost", 40.0, topic="/rfm/servers/server_2/audit", count=9, why="the disk is full")
    tick(log, 35.0, None, {"source": "fallback", "fallback": "hold", "reason": "server_1 is lost"})
    pages = [first, *(one.page() for one in (log, server, other, recorder))]
    presence = explain(AuditLog(pages), "push_1", EPOCH_S + 35.0).as_json()["processes"]["presence"]
    assert "30 of its records are missing from" in presence["server/server_1"]["text"]
    assert presence["server/server_2"]["presence"] == "without an end" and not presence["server/server_2"]["certain"]
    assert "the recorder lost messages meanwhile" in presence["server/server_2"]["text"]


def test_a_schedule_is_of_the_scheduler_that_the_robot_follows() -> None:
    """Each scheduler counts from 1: the newest plan with that epoch may be another's; and a refused one is not followed."""
    log = robot()
    first, second = (Log("scheduler", "scheduler", {"scheduler": 10 + n}, run=7 + n, begins_s=n * 5.0) for n in (0, 1))
    first.note("plan", 0.5, reason="the first one planned", published=True, schedule={"epoch": 1, "scheduler": 0})
    second.note("plan", 5.5, reason="the second one planned", published=True, schedule={"epoch": 1, "scheduler": 0})
    for at_s, scheduler, answered in ((0.7, 10, "NEWER"), (5.7, 11, "RIVAL")):
        schedule = {"epoch": 1, "scheduler": scheduler}
        log.event(at_s, "ScheduleReceived", result={"~": "ScheduleVerdict", "member": answered}, schedule=schedule)
    tick(log, 6.0, None, {"source": "fallback", "fallback": "hold", "reason": "paused by a person"})
    words = said(at(6.0, log, first, second), "schedule")
    assert "epoch 1 of scheduler a" in words and "the first one planned" in words
    assert "its scheduler: its records end 5.50 s before" in words


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "there"])
def test_what_records_that_are_missing_may_have_said_is_not_certain(lost: bool) -> None:
    """The robot followed another schedule and changed its state in five seconds that the disk did not take."""
    log, hold = robot(), {"source": "fallback", "fallback": "hold", "reason": "no answer"}
    transition(log, 0.8, "STREAMING")
    for at_s, scheduler in ((0.7, 10), (4.0, 11)):
        schedule = {"epoch": 1, "scheduler": scheduler}
        if at_s > 1.0:
            pages = [log.page()]
            transition(log, 3.9, "STALLED")
        log.event(at_s, "ScheduleReceived", result={"~": "ScheduleVerdict", "member": "NEWER"}, schedule=schedule)
    between = log.page()
    tick(log, 6.0, None, hold)
    log.note("sealed", 9.0, stamp=EPOCH_S + 9.0, records=6)
    pages += [log.page()] if lost else [between, log.page()]
    found = explain(AuditLog(pages), "push_1", EPOCH_S + 6.0).as_json()
    assert (found["schedule"]["scheduler"], found["robot"]["state"]) == ((10, "STREAMING") if lost else (11, "STALLED"))
    for part in ("schedule", "robot"):
        assert found[part]["certain"] is not lost
        assert any("2 of" in line and "are missing since then" in line for line in found[part]["said"]) is lost
    then = explain(AuditLog(pages), "push_1", EPOCH_S + 4.5).as_json()
    if lost:
        assert "2 of its records are missing" in then["headline"]
        assert "the next control period that is recorded, 1.50 s after, held (hold): no answer" in then["headline"]


def test_a_persons_word_is_told() -> None:
    found = at(2.41)
    assert found.headline == "held (hold): paused by a person" and "anna: pause (done: paused)" in said(found, "people")


def test_what_was_not_recorded_is_said() -> None:
    log = robot()
    log.event(0.7, "ScheduleReceived", result=1, schedule={"epoch": 4})
    tick(log, 1.0, [0.1, 1.0], row(3, 8))
    found = at(1.0, log)
    assert said(found, "schedule") == "epoch 4\nits scheduler's audit log is not in this recording"
    assert "what was asked is not in this recording" in said(found, "request")
    assert "its audit log is not in this recording" in said(found, "server")
    assert "what its noise was drawn from was not recorded" in said(found, "model")
    assert not next(part for part in found.parts if part.name == "network").known
    log = robot()
    tick(log, 1.5, None, {}, sensors=None)
    found = at(1.5, log)
    assert "nothing had been read yet" in said(found, "sensors") and "why was not recorded" in said(found, "command")


def test_before_the_first_request_it_says_that_there_is_none() -> None:
    log = robot()
    log.event(0.9, "ResetFinished", ok=True, problem="episode 1, seed 0")
    log.event(0.95, "ResetFinished", ok=False, problem="the arm is blocked")
    tick(log, 1.0, None, {"source": "none", "reason": "opening a session"})
    found = at(1.0, log)
    assert found.headline == "sent no command: opening a session"
    assert said(found, "request") == "no request to a policy is recorded before this moment"
    assert said(found, "chunk") == said(found, "server") == "none: no request to a policy is recorded before"
    assert "(at least 0 ms, 1 control period)" in said(found, "command")
    events = said(found, "events")
    assert "reset finished: episode 1, seed 0" in events and "reset finished, failed: the arm is blocked" in events


def test_json_has_every_part() -> None:
    found = json.loads(json.dumps(at(1.12).as_json()))
    assert found["request"]["sequence"] == 1 and found["server"]["batch_with"][0]["robot"] == "push_2"
    assert found["network"]["round_trip_s"] == pytest.approx(0.08) and found["command"]["step"] == 0
    assert found["images"][0]["camera"] == "front"


def test_nobody_and_never_are_errors_that_say_what_there_is() -> None:
    with pytest.raises(ConfigurationError, match=r"no robot 'door_1'.*push_1"):
        at(1.1, name="door_1")
    with pytest.raises(ConfigurationError, match="no control period of push_1 was recorded around"):
        at(50.0)


def test_a_moment_is_seconds_a_time_of_day_or_an_iso_time() -> None:
    begins = datetime.datetime(2026, 1, 31, 23, 59, 50)
    begins_s = begins.timestamp()
    assert moment_of("12.5", begins_s, begins_s + 60) == begins_s + 12.5
    assert moment_of("23:59:52.25", begins_s, begins_s + 60) == begins_s + 2.25
    assert moment_of("00:00:10", begins_s, begins_s + 60) == begins_s + 20  # past midnight
    assert moment_of(begins.astimezone(datetime.timezone.utc).isoformat(), begins_s, begins_s + 60) == begins_s
    with pytest.raises(ConfigurationError, match="not in the recording"):
        moment_of("12:00", begins_s, begins_s + 60)
    with pytest.raises(ConfigurationError, match="is no time"):
        moment_of("noon", begins_s, begins_s + 60)


def test_whatever_stands_in_a_record_an_explanation_is_made_or_refused() -> None:
    """A value of any record becomes another one: what is not there, of another type, or too much."""
    pages, rng, explained = [one.page() for one in shift()], random.Random(0), 0
    for _ in range(300):
        changed = [_with_another_value(page, rng) for page in pages]
        log = AuditLog(changed)
        incidents(Tracks(), log, lambda changed=changed: changed, EPOCH_S + 9)  # type: ignore[misc]
        for at_s in (1.12, 2.31, 2.41):
            with contextlib.suppress(RfmError):
                json.dumps(explain(log, "push_1", EPOCH_S + at_s).as_json())
                explained += 1
    assert explained > 700


OTHERS = (None, "words", -1, 1e30, [], {}, [1], {"~": "float", "is": "inf"}, {"~": "float32", "rows": "x"}, True, [{"a": 1}])


def _with_another_value(page: Page, rng: random.Random) -> Page:
    """In one record of the page."""
    lines = [json.loads(line) for line in page.lines]
    places = list(_places(rng.choice(lines)))
    holder, name = rng.choice(places)
    holder[name] = rng.choice(OTHERS)
    return dataclasses.replace(page, lines=tuple(json.dumps(line).encode() for line in lines))


def _places(found: Any) -> Iterator[tuple[Any, Any]]:
    for name, value in found.items() if isinstance(found, dict) else enumerate(found):
        yield found, name
        if isinstance(value, (dict, list)):
            yield from _places(value)
