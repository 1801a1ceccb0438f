"""Each event of a robot stands in its recording once, as it was, however the core received it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.robots.recorded import RecordedBrain
from ros2_rfm_serving.audit.values import ROBOT_EVENTS
from ros2_rfm_serving.robot import events
from ros2_rfm_serving.robot.config import EpisodeReset
from ros2_rfm_serving.types import RequestId, Schedule, TaskOutcome
from test.unit.audit.recordings import Recorder, all_records, replayed
from test.unit.deep_equality import difference
from test.unit.fakes import chunk, grant, observation
from test.unit.robot.mirrored import INPUTS
from test.unit.robot.robots import CONFIG, GOAL, sensors

NOW_S = 1.0
REQUEST = RequestId(robot="r1", component="system1", session_epoch=1, episode=1, sequence=1)
SCHEDULE = Schedule(epoch=7, placements=(), routes=(), predicted_actions_hz=0.0, policy="p")
SAMPLES: list[events.Event] = [
    events.ScheduleReceived(SCHEDULE),
    events.ServerStatusReceived("home", True),
    events.ServerStatusReceived("home", False),
    events.ServerLoadingReceived("home"),
    events.ServerLivenessReceived("home"),
    events.ServerLost("home"),
    events.ServerLost("home", "silent"),
    events.SessionOpened("system1", "home", grant()),
    events.SessionRefused("system1", "home", "other cameras", is_contract_mismatch=True),
    events.SessionRefused("monitor", "home", "", is_server_full=True),
    events.RefetchRequested(REQUEST),
    events.EpisodeResetAnswered(EpisodeReset("home", "system1", 1, 1), False),
    events.ReplyReceived(chunk(observation(1))),
    events.ControlTick(None, may_act=False),
    events.ControlTick(sensors(NOW_S)),
    events.TaskStarted(GOAL),
    events.TaskFinished(),
    events.TaskCanceled(TaskOutcome.CANCELED, "it was enough"),
    events.ResetStarted(),
    events.ResetFinished(False, "it fell"),
    events.StopRequested(),
    events.TrajectoryStopRequested(),
    events.PauseRequested(),
    events.ResumeRequested(),
    events.AbortRequested(),
    events.ConfigurationChanged(dataclasses.replace(CONFIG, default_budget_s=20.0)),
    events.CountsAdded({"late_session": 2}),
]
METHODS = {kind: name for name, kind in INPUTS.items()}


def recorded() -> tuple[RecordedBrain, Recorder]:
    recorder = Recorder()
    return recorder.make(CONFIG), recorder


def events_of(core: RecordedBrain, recorder: Recorder) -> list[Any]:
    """What a recording has of a core, which is given one more tick, before which counts are recorded."""
    core.tick(None, NOW_S + 1.0)
    recorder.journal.close(NOW_S + 2.0, "the end of the process")
    assert recorder.journal.failures == 0, recorder.journal.problem
    assert replayed(recorder.pages).difference is None
    return [codec.value(record["event"]) for record in all_records(recorder.pages) if "event" in record][:-1]


def as_recorded(event: events.Event) -> events.Event:
    """Images that no request took along are not recorded."""
    if isinstance(event, events.ControlTick) and event.sensors is not None:
        return dataclasses.replace(event, sensors=dataclasses.replace(event.sensors, images=()))
    return event


def test_every_event_has_a_sample() -> None:
    assert {type(event) for event in SAMPLES} == set(ROBOT_EVENTS.values())


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: type(event).__name__)
def test_an_event_that_is_handled_is_recorded(event: events.Event) -> None:
    core, recorder = recorded()
    core.handle(event, NOW_S)
    found = events_of(core, recorder)
    assert not difference(found, [as_recorded(event)])


@pytest.mark.parametrize("event", [one for one in SAMPLES if type(one) in METHODS], ids=lambda event: type(event).__name__)
def test_a_call_is_recorded_as_its_event(event: events.Event) -> None:
    core, recorder = recorded()
    values = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
    method = getattr(core, METHODS[type(event)])
    needs_time = type(event) not in TIMELESS
    method(**values, **({"now_s": NOW_S} if needs_time else {}))
    found = events_of(core, recorder)
    assert not difference(found, [as_recorded(event)])


TIMELESS = {
    events.RefetchRequested,
    events.EpisodeResetAnswered,
    events.TaskFinished,
    events.ResetStarted,
    events.StopRequested,
}
"""Events whose calls take no time."""


def test_nothing_is_recorded_of_what_a_core_calls_of_itself() -> None:
    """A status that says that a server is not ready makes the core call `server_lost`."""
    core, recorder = recorded()
    core.on_server_status("home", False, NOW_S)
    assert events_of(core, recorder) == [events.ServerStatusReceived("home", False)]


def test_an_event_that_fails_is_recorded_with_its_error() -> None:
    core, recorder = recorded()
    core.start(GOAL, NOW_S)
    with pytest.raises(AssertionError, match="one goal at a time"):
        core.start(GOAL, NOW_S)
    recorder.journal.close(NOW_S + 2.0, "")
    failed = next(record for record in all_records(recorder.pages) if "raised" in record)
    assert failed["event"]["~"] == "TaskStarted" and "AssertionError" in failed["raised"]
    assert replayed(recorder.pages).difference is None
