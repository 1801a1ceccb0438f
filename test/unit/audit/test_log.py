"""The audit log by time, by writer, and by what belongs together."""

from __future__ import annotations

import math

import pytest

from ros2_rfm_serving.audit.chain import Page
from ros2_rfm_serving.audit.explain.processes import fate_of, without_an_end
from ros2_rfm_serving.audit.journal import PAGE_PERIOD_S, Journal
from ros2_rfm_serving.audit.log import AuditLog, Key, key_of
from test.unit.audit.story import EPOCH_S, answer, request, robot, row, tick, transition


def pages() -> list[Page]:
    log = robot()
    log.page()  # of a flight recorder: the beginning is gone
    for step in range(5):
        tick(log, float(step), [0.0, 0.0], row(step, 1), requests=[request(step + 1)])
    answer(log, 4.5, 2)
    log.note("sealed", 5.0, records=7, stamp=EPOCH_S + 5.0)
    transition(log, 6.0, "STALLED")
    return [log.page()]


def test_what_came_before_the_first_word_on_time_has_a_time() -> None:
    log = AuditLog(pages())
    assert [one.stamp_s - EPOCH_S for one in log.of("robot/push_1", "tick")] == [0.0, 1.0, 2.0, 3.0, 4.0]
    last = log.last("robot/push_1", EPOCH_S + 2.5, "tick")
    assert last is not None and last.stamp_s == EPOCH_S + 2.0
    assert [one.stamp_s - EPOCH_S for one in log.within("robot/push_1", EPOCH_S + 1, EPOCH_S + 3, "tick")] == [1.0, 2.0, 3.0]


def test_frequent_kinds_are_kept_within_windows_and_the_others_always() -> None:
    log = AuditLog(pages(), [(EPOCH_S + 2.5, EPOCH_S + 3.5), (EPOCH_S + 0.5, EPOCH_S + 2.6)])
    assert [one.stamp_s - EPOCH_S for one in log.of("robot/push_1", "tick")] == [1.0, 2.0, 3.0]
    assert len(log.of("robot/push_1", "transition")) == 1 and not log.of("robot/push_1", "event")


def test_requests_and_answers_are_found_by_their_key() -> None:
    log = AuditLog(pages())
    key = Key("push_1", "system1", 3, 1, 2)
    assert log.requests[key][0].t_s == 1.0 and log.replies[key].t_s == 4.5
    assert key_of({"session_epoch": 3, "episode": 1, "sequence": 2}, "push_1") == key


def test_a_page_that_is_none_costs_itself_alone() -> None:
    (page,) = pages()
    broken = Page(writer="robot/push_1", run=1, first=0, previous="", lines=(b"{",))
    log = AuditLog([broken, page])
    assert len(log.damaged) == 1 and len(log.of("robot/push_1", "tick")) == 5


@pytest.mark.parametrize("stamp", [None, "soon", {"~": "float", "is": "nan"}])
def test_a_writer_that_never_says_the_time_is_read_without_one(stamp: object) -> None:
    log = robot()
    log.page()
    log.note("sealed", 1.0, records=0, stamp=stamp)
    tick(log, 2.0, None, {})
    (found,) = AuditLog([log.page()]).of("robot/push_1", "tick")
    assert math.isnan(found.stamp_s) and found.t_s == 2.0


@pytest.mark.parametrize("pace", [0.1, 1.0, 10.0])
def test_a_simulation_that_runs_faster_than_the_clock_leaves_no_gaps(pace: float) -> None:
    """Two writers that seal their chains every 5 s, of which one is killed after 60 s: that alone is an end without a word.

    Where the simulation is slow, its few seconds since then do not suffice to be certain.
    """
    written, now_s = list[Page](), [100.0]
    identities = iter(range(1, 10))
    journals = [
        Journal(
            writer,
            "server",
            send=written.append,
            stamp_s=lambda: EPOCH_S + pace * now_s[0],
            draw=lambda: next(identities),
        )
        for writer in ("server/killed", "server/lives")
    ]
    for journal in journals:
        journal.listeners(1, now_s[0])
    while now_s[0] < 200.0:
        now_s[0] += PAGE_PERIOD_S
        for journal in journals[now_s[0] > 160.0 :]:
            journal.tend(now_s[0])
    log = AuditLog(written)
    assert not [gap for runs in log.runs.values() for run in runs for gap in run.gaps]
    assert len(without_an_end(log, "server/killed")) == (pace >= 1.0) and not without_an_end(log, "server/lives")
    (run,) = log.runs["server/killed"]
    assert fate_of(log, "server/killed", run.ends_s + pace * 20.0).certain is (pace >= 1.0)
    assert not fate_of(log, "server/killed", run.ends_s + pace * 4.0).certain
