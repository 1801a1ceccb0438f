"""Processes of one name that run at the same time: a rival that was refused, or one that hangs and was replaced elsewhere."""

from __future__ import annotations

import pytest

from ros2_rfm_serving.audit.explain.processes import Presence, fate_of, without_an_end
from ros2_rfm_serving.audit.journal import PROCESS_ENDS
from ros2_rfm_serving.audit.log import AuditLog
from ros2_rfm_serving.audit.runs import Run

WRITER = "server/server_1"
ORDERLY, RIVAL = Run(WRITER, 1, 0.0, 60.0, process=1), Run(WRITER, 2, 20.0, 21.0, closed=PROCESS_ENDS, process=2)
KILLED = Run(WRITER, 1, 0.0, 40.0, process=1)


def recording(*runs: Run, ends_s: float = 60.0) -> AuditLog:
    log = AuditLog([])
    log.runs = {WRITER: sorted(runs, key=lambda run: run.begins_s), "recorder/a": [Run("recorder/a", 9, 0.0, ends_s)]}
    return log


@pytest.mark.parametrize("at_s", [10.0, 20.5, 30.0, 59.0])
def test_a_process_runs_although_a_rival_of_its_name_came_and_went(at_s: float) -> None:
    fate = fate_of(recording(ORDERLY, RIVAL), WRITER, at_s)
    assert fate.presence is Presence.RUNNING, fate
    assert without_an_end(recording(ORDERLY, RIVAL), WRITER) == []


def test_the_end_of_a_killed_process_is_its_own_and_not_that_of_its_rival() -> None:
    log = recording(KILLED, RIVAL)
    fate = fate_of(log, WRITER, 50.0)
    assert fate.presence is Presence.NO_END and fate.run == KILLED and fate.certain, fate
    assert without_an_end(log, WRITER) == [KILLED]


def test_chains_of_one_process_that_meet_have_no_end_in_between() -> None:
    first, second = Run(WRITER, 1, 0.0, 30.0, process=1), Run(WRITER, 2, 30.0, 60.0, after=1, process=1)
    log = recording(first, second)
    assert without_an_end(log, WRITER) == [] and fate_of(log, WRITER, 30.0).run == second


@pytest.mark.parametrize(("next_s", "ends_s", "expected"), [(59.5, 60.0, True), (99.0, 60.0, False), (99.0, 70.0, True)])
def test_a_successor_or_a_long_silence_is_an_end(next_s: float, ends_s: float, expected: bool) -> None:
    last = Run(WRITER, 1, 0.0, 59.0, process=1)
    successors = [Run(WRITER, 2, next_s, next_s, process=2)] if next_s < ends_s else []
    assert without_an_end(recording(last, *successors, ends_s=ends_s), WRITER) == [last] * expected
