from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ros2_rfm_serving.dispatch.history import TaskHistory, TimeInterval, wait_s
from ros2_rfm_serving.types import ExecutionReport


def asked(history: TaskHistory, now_s: float, executing: TimeInterval | None = None) -> None:
    report = ExecutionReport()
    if executing:
        report = ExecutionReport(executing_s=now_s - executing.begin_s, remaining_s=executing.end_s - now_s)
    history.on_request(now_s, report)


def fresh(now_s: float = 0.0) -> TaskHistory:
    history = TaskHistory()
    history.begin_task(1, ("system1", "go"), now_s)
    return history


def test_an_execution_dominated_round_waits_on_the_execution_side() -> None:
    """Figure 8a: the robot executes 1-4 and 6-9, the engine works 0-1, and 5-6 while the robot stands still."""
    history = fresh()
    asked(history, 0.0)
    history.on_generated(0.0, 1.0)
    asked(history, 4.0, TimeInterval(1.0, 4.0))
    history.on_generated(5.0, 6.0)
    assert history.waited_s == 0.0, "the second execution is not known yet"
    asked(history, 9.0, TimeInterval(6.0, 9.0))
    assert history.waited_s == pytest.approx(2.0) and history.wait_ratio(10.0) == pytest.approx(0.2)
    assert history.last_execution_s == pytest.approx(3.0) and history.attained_s == pytest.approx(2.0) and history.rounds == 2


def test_a_generation_dominated_round_waits_on_the_generation_side() -> None:
    """Figure 8b: generating takes 4, executing 1; the second generation begins 1 after the first has ended."""
    history = fresh()
    asked(history, 0.0)
    history.on_generated(0.0, 4.0)
    asked(history, 4.0, TimeInterval(4.0, 5.0))
    history.on_generated(5.0, 9.0)
    asked(history, 9.0, TimeInterval(9.0, 10.0))
    assert history.waited_s == pytest.approx(1.0)


def test_generation_that_overlaps_with_execution_is_no_wait() -> None:
    history = fresh()
    asked(history, 0.0)
    history.on_generated(0.0, 1.0)
    asked(history, 2.0, TimeInterval(1.0, 5.0))
    history.on_generated(2.0, 3.0)
    asked(history, 6.0, TimeInterval(5.0, 9.0))
    assert history.waited_s == 0.0


def test_a_chunk_that_was_never_executed_makes_no_round_and_a_later_report_corrects_the_end() -> None:
    history = fresh()
    asked(history, 0.0)
    history.on_generated(0.0, 1.0)
    asked(history, 2.0, TimeInterval(1.0, 4.0))
    history.on_generated(2.0, 3.0)  # its reply was lost
    asked(history, 5.0, TimeInterval(1.0, 4.5))
    assert history.last_execution_s == pytest.approx(3.5)
    history.on_generated(5.0, 6.0)
    asked(history, 7.0, TimeInterval(6.0, 8.0))
    assert history.waited_s == pytest.approx(6.0 - 4.5)


def test_a_new_episode_forgets_the_task_but_not_the_pace() -> None:
    history = fresh()
    asked(history, 0.0)
    history.on_generated(0.0, 1.0)
    asked(history, 4.0, TimeInterval(1.0, 4.0))
    history.on_generated(4.0, 5.0)
    assert history.next_request_s == pytest.approx(8.0) and history.request_interval_deviation_s == 0.0
    history.skipped = 3
    history.begin_task(2, ("system1", "go"), 10.0)
    assert (history.waited_s, history.attained_s, history.rounds, history.skipped) == (0.0, 0.0, 0, 0)
    assert history.wait_ratio(10.0) == 0.0 and history.last_execution_s == 0.0 and math.isnan(history.next_request_s)
    asked(history, 10.0)
    history.on_generated(10.0, 11.0)
    assert history.next_request_s == pytest.approx(14.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_report_that_says_nothing_spoils_nothing(value: float) -> None:
    history = fresh()
    history.on_generated(0.0, 1.0)
    history.on_request(2.0, ExecutionReport(executing_s=value, remaining_s=1.0))
    history.on_request(2.0, ExecutionReport(executing_s=1.0, remaining_s=value))
    assert history.waited_s == 0.0 and history.last_execution_s == 0.0


def test_a_newer_observation_is_asked_for_once_and_teaches_the_round_trip() -> None:
    history = fresh()
    assert history.request_refetch(7, 1.0) and not history.request_refetch(7, 1.1)
    before = history.refetch_s
    asked(history, 1.1)
    assert before < history.refetch_s < 0.1
    assert history.request_refetch(8, 2.0)


def test_a_newer_observation_that_was_lost_teaches_nothing() -> None:
    history = fresh()
    before = history.refetch_s
    assert history.request_refetch(7, 1.0)
    history.on_request(30.0, ExecutionReport(), replaces=False)  # the next round's
    assert history.refetch_s == before and history.request_refetch(8, 31.0)


DURATION = st.floats(0.0, 5.0)
ROUND = st.tuples(DURATION, DURATION, st.floats(0.001, 5.0), st.booleans(), st.booleans(), DURATION, st.floats(-2.0, 5.0))


@given(st.lists(ROUND, max_size=30))
def test_the_wait_is_that_of_algorithm_1_over_the_full_record(
    rounds: list[tuple[float, float, float, bool, bool, float, float]],
) -> None:
    """Reports of any kind: late, early, of an older chunk; replies that got lost; requests that replaced others."""
    history, now_s = fresh(), 0.0
    record: list[tuple[TimeInterval, TimeInterval]] = []
    generated: TimeInterval | None = None
    for pause_s, queued_s, served_s, lost, replaced, executing_s, remaining_s in rounds:
        now_s += pause_s
        for _ in range(1 + replaced):
            executed = TimeInterval(now_s - executing_s, now_s + remaining_s)
            if lost and record:
                executed = TimeInterval(record[-1][1].begin_s, now_s + remaining_s)
            asked(history, now_s, executed)
            if executed.end_s - executed.begin_s > 0:
                if generated and executed.begin_s >= generated.end_s - 1e-6:
                    record.append((generated, executed))
                    generated = None
                elif record:
                    record[-1] = record[-1][0], TimeInterval(record[-1][1].begin_s, executed.end_s)
        begun_s = now_s + queued_s
        now_s = begun_s + served_s
        generated = TimeInterval(begun_s, now_s)
        history.on_generated(begun_s, now_s)
    # Algorithm 1, lines 2-6
    expected_s = 0.0
    for (g, e), (next_g, next_e) in pairwise(record):
        gap_s = next_g.begin_s - g.end_s if g.end_s - g.begin_s >= e.end_s - e.begin_s else next_e.begin_s - e.end_s
        expected_s += max(0.0, gap_s)
    assert history.waited_s == pytest.approx(expected_s, abs=1e-6)
    assert 0.0 <= history.wait_ratio(now_s + 1.0) <= 1.0


@given(st.lists(st.floats(0.0, 10.0), min_size=8, max_size=8))
def test_a_wait_is_never_negative(times: list[float]) -> None:
    intervals = [TimeInterval(min(pair), max(pair)) for pair in zip(times[::2], times[1::2], strict=True)]
    assert wait_s(*intervals) >= 0.0
