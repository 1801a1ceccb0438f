"""What a robot decided it decides again, from the start and from every snapshot; and nothing else passes for it."""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from ros2_rfm_serving.audit.chain import Page
from ros2_rfm_serving.audit.export.episodes import episodes
from ros2_rfm_serving.audit.export.frames import Skipped
from ros2_rfm_serving.audit.export.labels import Labels
from ros2_rfm_serving.audit.log import AuditLog
from ros2_rfm_serving.audit.whatif.chains import chains_of
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.robot import RobotConfig
from ros2_rfm_serving.robot.client.component_client import ComponentClient
from ros2_rfm_serving.robot.client.request_timing import RequestTiming
from ros2_rfm_serving.robot.motion.failsafe import FailSafe
from test.unit.audit.recordings import Recorder, all_records, from_snapshot, recorded_world, replayed, rewritten, run
from test.unit.robot.test_robot_machine import PERIOD_S, PipelinedMachine, RobotMachine

DECISIONS = ("tick", "event", "transition")
REPLAYED: dict[str, int] = {"runs": 0, "decisions": 0, "snapshots": 0}


class RecordedMachine(RobotMachine):
    """The robot of the promises' test, with whatever may happen to it, recorded; more listeners come now and then."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        type(self).make = self.recorder.make  # type: ignore[method-assign]
        self.listeners = 1
        super().__init__()

    def period(self, ticks: int = 1, dt_s: float = PERIOD_S, *, may_act: bool = True) -> None:
        super().period(ticks, dt_s, may_act=may_act)
        self.recorder.journal.tend(self.world.now_s)

    @rule()
    def somebody_listens(self) -> None:
        self.listeners += 1
        self.recorder.journal.listeners(self.listeners, self.world.now_s)

    @rule(what=st.sampled_from(["bad_message", "late_session"]), count=st.integers(1, 3))
    def others_count(self, what: str, count: int) -> None:
        self.brain.refused[what] += count

    @rule(budget_s=st.sampled_from([20.0, 60.0]), age_s=st.sampled_from([0.4, 0.9]), votes=st.integers(1, 3))
    def is_reconfigured(self, budget_s: float, age_s: float, votes: int) -> None:
        config = replace(self.brain.config, default_budget_s=budget_s, verdict_votes=votes)
        self.brain.prepared(config)()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.recorder.journal.close(self.world.now_s, "the end of the process")
            check(self.recorder.pages)


class RecordedPipelinedMachine(RecordedMachine, PipelinedMachine):
    """The same with requests in flight beside one another."""


def check(pages: list[Page]) -> None:
    found = all_records(pages)
    snapshots = [record["n"] for record in found if record["kind"] == "snapshot"]
    for number in snapshots:
        again = replayed(from_snapshot(pages, number))
        assert again.difference is None, (number, again.at, again.difference)
        assert not again.refused and not again.notes
    again = replayed(pages)
    assert again.snapshots == len(snapshots) - 1
    REPLAYED["runs"] += 1
    REPLAYED["decisions"] += again.decisions
    REPLAYED["snapshots"] += again.snapshots


@pytest.mark.patient
@pytest.mark.timeout(300)
@pytest.mark.parametrize("machine", [RecordedMachine, RecordedPipelinedMachine])
def test_whatever_happens_is_decided_again(machine: type[RecordedMachine]) -> None:
    effort = settings(
        max_examples=12,
        stateful_step_count=12,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
        derandomize=False,
    )
    run_state_machine_as_test(machine, settings=effort)
    print(REPLAYED)
    assert REPLAYED["decisions"] > 1000 and REPLAYED["snapshots"] > 5


# --- nothing else passes for it ---


@pytest.fixture(scope="module")
def pages() -> list[Page]:
    """Half a minute with late answers, a failover, a pause and an abort."""
    world, recorder = recorded_world(safety=0.3, monitor=0.3, system2=0.3)
    run(world, recorder, 6)
    world.brain.on_server_lost("home", world.now_s)
    run(world, recorder, 4)
    world.conditions.latency_s = 0.5
    run(world, recorder, 4)
    world.conditions.latency_s = 0.03
    world.brain.pause(world.now_s)
    run(world, recorder, 2)
    world.brain.resume(world.now_s)
    run(world, recorder, 10)
    world.brain.abort(world.now_s)
    run(world, recorder, 2)
    recorder.journal.close(world.now_s, "the end of the process")
    assert recorder.journal.failures == 0
    return recorder.pages


def test_the_run_itself_has_no_difference(pages: list[Page]) -> None:
    check(pages)
    again = replayed(pages)
    assert again.decisions > 500 and again.seconds == pytest.approx(28.0, abs=0.6)


@pytest.mark.parametrize("key", ["command", "why", "requests", "result", "to"])
def test_one_value_that_was_changed_is_found(pages: list[Page], key: str) -> None:
    rng = random.Random(key)
    for _ in range(5):
        number = rng.choice([one["n"] for one in all_records(pages) if one.get(key) and one["kind"] in DECISIONS])
        again = replayed(rewritten(pages, functools.partial(_change, number=number, key=key, rng=rng)))
        assert again.difference is not None and again.at["n"] == number
        assert again.difference.field.split(".")[0].split("[")[0] == key


def test_another_input_is_found(pages: list[Page]) -> None:
    def change(found: list[dict[str, Any]]) -> None:
        received = [one["event"] for one in found if one["kind"] == "event" and one.get("result") is True]
        reply = next(one["reply"] for one in received if one["~"] == "ReplyReceived" and "chunk_robot" in one["reply"])
        for row in reply["chunk_robot"]["rows"]:
            row[0] += 0.25

    assert replayed(rewritten(pages, change)).difference is not None


def _change(found: list[dict[str, Any]], number: int, key: str, rng: random.Random) -> None:
    found[number][key] = _changed(found[number][key], rng)


def _changed(value: Any, rng: random.Random) -> Any:
    """One leaf of it is another one."""
    if isinstance(value, dict):
        key = rng.choice([name for name in value if name not in ("~", "chunk")])
        return {**value, key: _changed(value[key], rng)}
    if isinstance(value, list) and value:
        again = copy.copy(value)
        index = rng.randrange(len(again))
        again[index] = _changed(again[index], rng)
        return again
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    return f"{value}?"


CHANGES: list[tuple[type, str, Callable[..., Any]]] = [
    (RequestTiming, "may_pop", lambda self: self._queue.depth > 1),
    (ComponentClient, "delay_steps", lambda self, step_rate_hz: 2),
    (FailSafe, "_online", lambda self, facts, now_s: (self.state, "")),
]


@pytest.mark.parametrize(("kind", "name", "other"), CHANGES)
def test_code_that_decides_otherwise_is_found(
    pages: list[Page], monkeypatch: pytest.MonkeyPatch, kind: type, name: str, other: Callable[..., Any]
) -> None:
    monkeypatch.setattr(kind, name, other)
    again = replayed(pages)
    assert again.difference is not None and again.at["n"] > 1


def test_a_failure_is_a_decision_too(monkeypatch: pytest.MonkeyPatch) -> None:
    world, recorder = recorded_world()
    run(world, recorder, 2)
    with monkeypatch.context() as broken:
        broken.setattr(ComponentClient, "delay_steps", lambda self, step_rate_hz: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            run(world, recorder, 2)
    run(world, recorder, 1)
    again = replayed(recorder.pages)
    assert again.difference is not None and "ZeroDivisionError" in again.difference.recorded, "it does not fail here"
    number, field = again.at["n"], again.difference.field
    assert field == "raised" and "raised" in all_records(recorder.pages)[number]


# --- what cannot be replayed is said ---


def test_a_brain_of_another_version_is_refused_with_the_reason(pages: list[Page]) -> None:
    def change(found: list[dict[str, Any]]) -> None:
        for record in found:
            if record["kind"] == "snapshot":
                record["state"]["hat"] = record["state"].pop("num_held_periods")

    again = replayed(rewritten(pages, change))
    assert again.refused and again.difference is None and again.decisions == 0
    assert "has hat, which this version does not know" in again.notes[0] and "lacks num_held_periods" in again.notes[0]


@pytest.mark.parametrize("recorded", [1, 3])
def test_a_recording_in_another_format_is_refused_by_its_name(pages: list[Page], recorded: int) -> None:
    def change(found: list[dict[str, Any]]) -> None:
        for record in found:
            if record["kind"] in ("begin", "snapshot"):
                del record["format"]
                record.update({"format": recorded} if recorded != 1 else {})

    again = replayed(rewritten(pages, change))
    refusal = f"recorded in format {recorded}, which this version does not read"
    assert again.refused and again.notes == [refusal] and again.decisions == 0
    for read in (AuditLog, chains_of, lambda found: list(episodes(found, lambda digest: None, Labels(), Skipped()))):
        with pytest.raises(RfmError, match=f"robot/r1: {refusal}"):
            read(rewritten(pages, change))


def test_other_software_is_said(pages: list[Page]) -> None:
    again = replayed(rewritten(pages, lambda found: found[0]["versions"].update(numpy="1.0")))
    assert again.difference is None and "numpy 1.0, here" in again.notes[0]


def test_after_a_gap_the_next_snapshot_begins_anew(pages: list[Page]) -> None:
    again = replayed([page for number, page in enumerate(pages) if number not in (5, 6)])
    assert again.difference is None and again.decisions > 300 and again.skipped > 10
    assert "records are missing" in again.notes[0]


def test_an_event_that_this_version_has_not_ends_the_stretch(pages: list[Page]) -> None:
    def change(found: list[dict[str, Any]]) -> None:
        next(one for one in found if one["kind"] == "event")["event"]["~"] = "SongRequested"

    again = replayed(rewritten(pages, change))
    assert again.refused and "'SongRequested' is no event" in again.notes[0] and again.difference is None


def test_nobody_who_looks_changes_it() -> None:
    """Status messages, diagnostics and the like are made in between."""
    world, recorder = recorded_world()
    for _ in range(60):
        run(world, recorder, 0.25)
        brain = world.brain
        _ = (brain.rates(world.now_s), brain.slo_s("nobody"), brain.next_tick_s(world.now_s), brain.why, brain.sessions)
    assert replayed(recorder.pages).difference is None


def test_a_brain_without_listeners_notes_nothing() -> None:
    recorder = Recorder()
    brain = recorder.make(RobotConfig(name="r1", action_names=("x",), cameras=(), state_size=1, control_rate_hz=20.0))
    recorder.journal.listeners(0, 0.0)
    pages, records = len(recorder.pages), recorder.journal.records
    for step in range(50):
        brain.tick(None, 0.05 * step)
        recorder.journal.tend(0.05 * step)
    assert (len(recorder.pages), recorder.journal.records) == (pages, records)


# --- contents that no version wrote ---


def test_a_record_of_an_unknown_kind_is_named(pages: list[Page]) -> None:
    def change(found: list[dict[str, Any]]) -> None:
        next(one for one in found if one["kind"] == "event")["kind"] = "song"

    again = replayed(rewritten(pages, change))
    assert again.refused and again.difference is None
    assert again.notes[0].endswith("cannot be replayed: this version knows no kind 'song'")


def test_a_trajectory_that_is_not_decided_again_is_a_difference(pages: list[Page]) -> None:
    def change(found: list[dict[str, Any]]) -> None:
        next(one for one in found if one["kind"] == "tick")["trajectory"] = {"~": "Trajectory", "points": []}

    again = replayed(rewritten(pages, change))
    assert again.difference is not None and again.difference.field == "trajectory"


@pytest.mark.parametrize("value", [{"~": "float", "is": "nan"}, {"~": "float32", "shape": [10**12, 0]}, "x", None, []])
def test_a_snapshot_whose_configuration_cannot_be_is_refused_and_the_next_one_goes_on(pages: list[Page], value: Any) -> None:
    def change(found: list[dict[str, Any]]) -> None:
        next(one for one in found if one["kind"] == "snapshot")["config"]["interpolation"] = value

    again = replayed(rewritten(pages, change))
    assert again.refused and "a snapshot, cannot be replayed from" in again.notes[0]
    assert again.difference is None and again.decisions > 100


def test_an_empty_array_of_a_trillion_rows_takes_no_memory(pages: list[Page]) -> None:
    def change(found: list[dict[str, Any]]) -> None:
        received = (one["event"] for one in found if one["kind"] == "event")
        next(one for one in received if one["~"] == "ReplyReceived")["reply"]["server"] = {"~": "float32", "shape": [10**12, 0]}

    again = replayed(rewritten(pages, change))
    assert again.difference is not None or again.refused
