"""`rfm audit safety`: each rule is seen to be kept, and seen to be broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ros2_rfm_serving.audit import safety
from ros2_rfm_serving.audit.log import AuditLog
from ros2_rfm_serving.audit.safety import kept
from ros2_rfm_serving.cli.main import app
from ros2_rfm_serving.errors import RfmError
from test.unit.audit.story import Log, answer, request, row, tick, transition

CONFIG = {"max_action_age_s": 3.0, "limits": {"lower": [-1.0, -1.0], "upper": [1.0, 1.0]}}


def robot() -> Log:
    return Log("robot/push_1", "robot", {"config": CONFIG})


def story(log: Log) -> None:
    """A session, a request, its chunk, a row of it, a stop."""
    log.note(
        "call", 0.1, do="session_opened", args={"component": "system1", "server": "s", "grant": {"session_epoch": 3}}, result=None
    )
    transition(log, 0.15, "STREAMING")
    tick(log, 0.2, None, {"by": "nothing", "reason": ""}, requests=[request(1)])
    answer(log, 0.3, 1)
    tick(log, 0.4, [0.5, 1.0], row(0, 1))
    transition(log, 0.45, "STREAMING", phase="STOPPED")
    tick(log, 0.5, [0.0, 0.0], {"by": "rung", "rung": "hold", "reason": "stopped"})


def test_what_is_as_it_must_be_breaks_nothing() -> None:
    log = robot()
    story(log)
    found = kept(AuditLog([log.page()]))
    assert found.broken == ()
    asked = {rule for rule, times in found.judged.items() if times}
    assert asked == set(safety.RULES) - {safety.RESET, safety.TABLE}


def old(log: Log) -> None:
    tick(log, 1.0, [0.0, 0.0], row(0, 1) | {"staleness_s": 3.2})


def foreign_chunk(log: Log) -> None:
    tick(log, 1.0, [0.0, 0.0], row(0, 9))


def unasked(log: Log) -> None:
    answer(log, 1.0, 7)


def moved_at_reset(log: Log) -> None:
    log.note("call", 1.0, do="reset_begins", args={}, result=None)
    tick(log, 1.1, [0.0, 0.0], {"by": "rung", "reason": ""})


def too_far(log: Log) -> None:
    tick(log, 1.0, [0.0, 1.2], {"by": "rung", "reason": ""})


def acts_when_stopped(log: Log) -> None:
    tick(log, 1.0, [0.0, 0.0], row(1, 1))


def resurrects(log: Log) -> None:
    transition(log, 1.0, "DEAD")


def raises(log: Log) -> None:
    log.note("tick", 1.0, sensors=None, may_act=True, raised="ValueError")


BREAKS: dict[str, Callable[[Log], None]] = {
    safety.AGE: old,
    safety.CHUNK: foreign_chunk,
    safety.SESSION: unasked,
    safety.RESET: moved_at_reset,
    safety.LIMITS: too_far,
    safety.STANDING: acts_when_stopped,
    safety.TABLE: resurrects,
    safety.RAISED: raises,
}


@pytest.mark.parametrize("rule", safety.RULES)
def test_what_is_not_is_found(rule: str) -> None:
    log = robot()
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


def test_the_verb(repository: Path) -> None:
    done = CliRunner().invoke(app, ["audit", "safety", str(repository / "test" / "bags" / "0.1.0" / "two_arms"), "--json"])
    told = json.loads(done.stdout)
    assert done.exit_code == 0 and told["broken"] == [] and sum(told["judged"].values()) > 100


def test_what_is_no_recording_is_said(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["audit", "safety", str(tmp_path)])
    assert isinstance(done.exception, RfmError) and "no recording" in str(done.exception)
