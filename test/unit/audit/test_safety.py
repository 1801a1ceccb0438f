"""`rfm audit safety`: each rule is seen to be kept, and seen to be broken."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from typer.testing import CliRunner

from ros2_rfm_serving.audit import codec, safety
from ros2_rfm_serving.audit.log import AuditLog
from ros2_rfm_serving.audit.safety import kept
from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.robot.config import ComponentClientConfig, TaskPolicy
from ros2_rfm_serving.types import Fallback, TaskOutcome
from test.unit.audit.story import Log, answer, control_tick, request, row, tick, transition
from test.unit.audit.test_robot_replay import RecordedMachine, RecordedPipelinedMachine

CONFIG = {
    "max_action_age_s": 3.0,
    "limits": {"lower": [-1.0, -1.0], "upper": [1.0, 1.0]},
    "link": codec.plain(ComponentClientConfig()),
}
SUPERVISED = CONFIG | {"policy": codec.plain(TaskPolicy(fallbacks={"safety": Fallback.STOP_AND_REPLAN}))}


def robot(rule: str = "") -> Log:
    return Log("robot/push_1", "robot", {"config": SUPERVISED if rule == safety.PASSED else CONFIG})


def story(log: Log) -> None:
    """A schedule, a session, a request, its chunk, a row of it, a stop."""
    log.event(0.05, "ScheduleReceived", schedule={"routes": ({"robot": "push_1", "component": "system1", "slo_s": 0.4},)})
    log.event(0.1, "SessionOpened", component="system1", server="s", grant={"session_epoch": 3})
    transition(log, 0.15, "STREAMING")
    tick(log, 0.2, None, {"source": "none", "reason": ""}, requests=[request(1)])
    answer(log, 0.3, 1)
    tick(log, 0.4, [0.5, 1.0], row(0, 1))
    transition(log, 0.45, "STREAMING", phase="STOPPED")
    tick(log, 0.5, [0.0, 0.0], {"source": "fallback", "fallback": "hold", "reason": "stopped"})


def test_what_is_as_it_must_be_breaks_nothing() -> None:
    log = robot()
    story(log)
    found = kept(AuditLog([log.page()]))
    assert found.broken == ()
    asked = {rule for rule, times in found.judged.items() if times}
    assert asked == set(safety.RULES) - {safety.RESET, safety.TABLE, safety.FLIGHT, safety.PASSED}


def old(log: Log) -> None:
    tick(log, 1.0, [0.0, 0.0], row(0, 1) | {"staleness_s": 3.2})


def foreign_chunk(log: Log) -> None:
    tick(log, 1.0, [0.0, 0.0], row(0, 9))


def unasked(log: Log) -> None:
    answer(log, 1.0, 7)


def moved_at_reset(log: Log) -> None:
    log.event(1.0, "ResetStarted")
    tick(log, 1.1, [0.0, 0.0], {"source": "fallback", "reason": ""})


def too_far(log: Log) -> None:
    tick(log, 1.0, [0.0, 1.2], {"source": "fallback", "reason": ""})


def acts_when_stopped(log: Log) -> None:
    tick(log, 1.0, [0.0, 0.0], row(1, 1))


def resurrects(log: Log) -> None:
    transition(log, 1.0, "DEAD")


def raises(log: Log) -> None:
    log.note("tick", 1.0, event=control_tick(None), raised="ValueError")


def asks_twice(log: Log) -> None:
    for number in (2, 3):
        tick(log, 1.0 + 0.1 * number, None, {"source": "none", "reason": ""}, requests=[request(number)])


def is_warned(log: Log) -> None:
    verdict(log, 1.0, "unsafe")
    tick(log, 1.1, [0.0, 0.0], row(1, 1))


def verdict(log: Log, t_s: float, word: str) -> None:
    told = {"id": {"robot": "push_1", "component": "safety", "session_epoch": 9, "episode": 1, "sequence": 1}, "verdict": word}
    log.event(t_s, "ReplyReceived", result=True, reply=told)


BREAKS: dict[str, Callable[[Log], None]] = {
    safety.AGE: old,
    safety.CHUNK: foreign_chunk,
    safety.SESSION: unasked,
    safety.RESET: moved_at_reset,
    safety.LIMITS: too_far,
    safety.STANDING: acts_when_stopped,
    safety.TABLE: resurrects,
    safety.RAISED: raises,
    safety.FLIGHT: asks_twice,
    safety.PASSED: is_warned,
}


@pytest.mark.parametrize("rule", safety.RULES)
def test_what_is_not_is_found(rule: str) -> None:
    log = robot(rule)
    story(log)
    if rule not in (safety.STANDING,):
        transition(log, 0.6, "STREAMING")
    BREAKS[rule](log)
    (broken,) = kept(AuditLog([log.page()])).broken
    assert (broken.rule, broken.robot) == (rule, "push_1")


def test_a_wall_clock_that_is_set_back_moves_no_record() -> None:
    """Records stand in the order in which they were written, whatever ROS time says of them."""
    log = robot()
    story(log)
    log.note("sealed", 0.6, records=8, stamp=1_600_000_000.0)
    transition(log, 0.7, "STREAMING")
    tick(log, 0.8, [0.0, 0.0], row(1, 1))
    assert kept(AuditLog([log.page()])).broken == ()


def test_who_is_late_may_be_asked_again_and_a_pass_is_one() -> None:
    log = robot(safety.PASSED)
    story(log)
    transition(log, 0.6, "STREAMING")
    for at_s, number in ((1.0, 2), (1.45, 3)):
        tick(log, at_s, None, {"source": "none", "reason": ""}, requests=[request(number)])
    verdict(log, 1.5, "Safe")
    tick(log, 1.6, [0.0, 0.0], row(1, 1))
    log.event(1.7, "PauseRequested")
    tick(log, 1.8, [0.0, 0.0], row(2, 1))
    assert [one.what for one in kept(AuditLog([log.page()])).broken] == ["no word yet"]


def test_nothing_is_said_of_what_lies_in_a_gap() -> None:
    """A page that was lost on its way had the chunk, the end of a stop, and half of a reset."""
    log = robot()
    story(log)
    first = log.page()
    tick(log, 0.6, None, {"source": "none", "reason": ""}, requests=[request(2)])
    answer(log, 0.7, 2)
    transition(log, 0.8, "STREAMING")
    log.page()
    tick(log, 0.9, [0.0, 0.0], row(0, 2))
    assert kept(AuditLog([first, log.page()])).broken == ()


def test_who_is_deactivated_does_not_wait_for_a_reset() -> None:
    log = robot()
    story(log)
    log.event(0.6, "ResetStarted")
    log.event(0.7, "TaskCanceled", outcome=TaskOutcome.SHUTDOWN, message="")
    transition(log, 0.8, "STREAMING")
    tick(log, 0.9, [0.0, 0.0], row(1, 1))
    assert kept(AuditLog([log.page()])).broken == ()


@pytest.mark.parametrize("machine", [RecordedMachine, RecordedPipelinedMachine])
def test_whatever_happens_to_a_robot_none_of_it_is_broken(machine: type[RecordedMachine], monkeypatch: pytest.MonkeyPatch) -> None:
    """The robot of the promises' test; what is judged by what it wrote agrees with what is asserted there."""
    judged: Counter[str] = Counter()

    def teardown(made: RecordedMachine) -> None:
        found = kept(AuditLog(made.recorder.pages))
        assert found.broken == ()
        judged.update(found.judged)

    monkeypatch.setattr(machine, "teardown", teardown)
    effort = settings(max_examples=8, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck))
    for _ in range(10):  # what is drawn may have hardly any answers
        run_state_machine_as_test(machine, settings=settings(effort, phases=[Phase.generate]))
        if enough := judged[safety.AGE] > 20 and judged[safety.SESSION] > 20:
            break
    assert enough, judged


def test_the_verb(repository: Path) -> None:
    done = CliRunner().invoke(app, ["audit", "safety", str(repository / "test" / "bags" / "0.1.0" / "two_arms"), "--json"])
    told = json.loads(done.stdout)
    assert done.exit_code == 0 and told["broken"] == [] and sum(told["judged"].values()) > 100


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_what_cannot_be_read_is_said(repository: Path, tmp_path: Path, options: list[str]) -> None:
    bag = shutil.copytree(repository / "test" / "bags" / "0.1.0" / "two_arms", tmp_path / "bag")
    file = max(bag.glob("*.mcap"), key=lambda one: one.stat().st_size)
    file.write_bytes(file.read_bytes()[: -file.stat().st_size // 3])
    done = CliRunner().invoke(app, ["audit", "safety", str(bag), *options])
    assert done.exit_code == 0 and file.name in done.stdout and ("not judged" in done.stdout or '"damages": ["' in done.stdout)


def test_what_is_no_recording_is_said(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["audit", "safety", str(tmp_path)])
    assert isinstance(done.exception, RfmError) and "no recording" in str(done.exception)
