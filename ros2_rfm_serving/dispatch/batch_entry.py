"""Iteration-level batching (Orca) for rows with deadlines: which requests join a running batch, and which rows a turn advances.

New rows are perceived between two turns, and all rows in flight wait meanwhile. Therefore rows enter in groups, and only as many
groups are in flight as increase throughput (`InFlightRows.num_groups`). One group is a batch that no row joins; as many groups as a
row has turns let every row enter at once. No row waits for a group to end if it would miss its deadline by that, and no row enters
if a row in flight would miss its own. Where one group is best and no row is in flight, the waiting requests run as a fixed batch in
one call, which spares the engine and the server the overhead of every turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from ros2_rfm_serving.dispatch.base import NOTHING, DispatchDecision, EngineView
from ros2_rfm_serving.dispatch.in_flight import InFlightRow, InFlightRows
from ros2_rfm_serving.dispatch.waiting_request import WaitingRequest

ExpectedArrivals = Callable[[], Sequence[float]]
MAX_WHOLE_RATIO = 1.5
"""Largest accepted ratio of the time of a whole batch to the time of the same rows step by step. Smaller differences are within the
noise of few measurements."""


def batch_entry(
    ranked: Sequence[WaitingRequest], engine: EngineView, now_s: float, expected_arrivals: ExpectedArrivals
) -> DispatchDecision:
    """Select one more waiting request, none at this turn, or a whole batch. An engine that runs whole calls gets whatever waits."""
    flight = engine.in_flight
    if flight is None:
        return DispatchDecision(ranked[: engine.batch_size])
    able = _eligible(ranked, flight)
    num_new = flight.num_entering + 1
    if not able or flight.is_full:
        return NOTHING
    batch = able[: engine.batch_size]
    if (
        _can_run_whole(batch, flight)
        and _is_whole_best(len(able), engine, flight, expected_arrivals)
        and _is_whole_faster(len(batch), engine, flight)
    ):
        return DispatchDecision(batch, whole=True)
    rows = flight.moving()
    if rows and (
        _causes_deadline_miss(rows, num_new, flight, now_s)
        or (num_new == 1 and _should_enter_later(able, rows, flight, now_s, expected_arrivals))
    ):
        return NOTHING
    return DispatchDecision(able[:1])


def rows_to_advance(in_flight: InFlightRows, ready: Collection[int], now_s: float) -> Sequence[int]:
    """Return the rows that advance with this turn.

    These are all ready rows, unless some would be late together with the others and in time alone, while no other row becomes late
    by that or has been passed over for as many turns as a row takes. Otherwise a row without a deadline would wait for ever beside
    robots that send requests again and again.
    """
    numbers = list(ready)
    step_s = in_flight.step.seconds(len(numbers))
    late = [n for n in numbers if now_s < in_flight.rows[n].deadline_s < now_s + in_flight.rows[n].iterations_left * step_s]
    if not late or len(late) == len(numbers):
        return numbers
    urgent: list[int] = []
    for number in sorted(late, key=lambda n: in_flight.rows[n].deadline_s):
        if _meets_deadlines([*urgent, number], numbers, in_flight, now_s):
            urgent.append(number)
    return urgent or numbers


def _eligible(ranked: Sequence[WaitingRequest], in_flight: InFlightRows) -> Sequence[WaitingRequest]:
    """Return the requests that may enter. A session that was in a failed call has the engine for itself until it gets an answer.
    Rows that wait for their session's next frame are in no call."""
    in_calls = [row for row in in_flight.rows.values() if not row.paused]
    if ranked and ranked[0].history.suspect:
        return () if in_calls else ranked[:1]
    if any(row.waiting.history.suspect for row in in_calls):
        return ()
    return [waiting for waiting in ranked if not waiting.history.suspect]


def _can_run_whole(batch: Sequence[WaitingRequest], in_flight: InFlightRows) -> bool:
    """Return whether all requests are alike, no row is in flight, and no frame of a pipelined session would wait for the whole
    batch."""
    if in_flight.rows or in_flight.promised:
        return False
    return all(each.request.pipelining is None and in_flight.knows(len(batch), each.request.num_steps) for each in batch)


def _is_whole_best(num_waiting: int, engine: EngineView, in_flight: InFlightRows, expected_arrivals: ExpectedArrivals) -> bool:
    """Return whether one group is best for the waiting requests, and also for the number that arrives on average while it runs."""
    num_sessions = len(expected_arrivals())
    later = max(num_waiting, min(num_sessions, math.ceil(1.5 * num_waiting)))
    return all(in_flight.is_best_whole(num_here, num_sessions, engine.times) for num_here in (num_waiting, later))


def _is_whole_faster(num_rows: int, engine: EngineView, in_flight: InFlightRows) -> bool:
    """Return whether a whole batch is quicker by the measurements so far. These are renewed now and then, because an engine may pad
    every batch to its largest size."""
    times = engine.times
    is_quicker = num_rows > times.max_observed_rows or times.seconds(num_rows) <= MAX_WHOLE_RATIO * in_flight.seconds(num_rows)
    return is_quicker != in_flight.is_due(whole=not is_quicker)


def _causes_deadline_miss(rows: Sequence[InFlightRow], num_new: int, in_flight: InFlightRows, now_s: float) -> bool:
    """Return whether a row in flight would miss a deadline that it would otherwise keep if `num_new` rows were perceived now."""
    alone_s, company_s = in_flight.step.seconds(len(rows)), in_flight.step.seconds(len(rows) + num_new)
    stall_s = in_flight.perceive.seconds(num_new)
    return any(
        now_s + row.iterations_left * alone_s <= row.deadline_s < now_s + stall_s + row.iterations_left * company_s for row in rows
    )


def _should_enter_later(
    waiting: Sequence[WaitingRequest],
    rows: Sequence[InFlightRow],
    in_flight: InFlightRows,
    now_s: float,
    expected_arrivals: ExpectedArrivals,
) -> bool:
    """Return whether the requests should enter when a group has ended, or when they have waited longer, rather than now."""
    if waiting[0].request.pipelining is not None or not in_flight.step.seconds(len(rows)):
        return False  # rows of its session wait for this frame, or no time is known yet
    new = waiting[: max(1, in_flight.max_rows - len(in_flight.rows))]
    groups = {row.num_iterations for row in rows if not row.is_pipelined}
    num_groups = in_flight.num_groups(len(rows) + len(waiting), len(expected_arrivals()))
    if len(groups) < num_groups and not _delays_more(new, rows, in_flight, now_s):
        return False
    wait_s = min(row.iterations_left for row in rows) * in_flight.step.seconds(len(rows))
    return not any(_is_late(each, wait_s, len(new), in_flight, now_s) for each in new)


def _delays_more(new: Sequence[WaitingRequest], rows: Sequence[InFlightRow], in_flight: InFlightRows, now_s: float) -> bool:
    """Return whether, summed, the rows in flight would wait longer for this perception than the new requests have waited and would
    wait for those rows."""
    end_s = now_s + max(row.iterations_left for row in rows) * in_flight.step.seconds(len(rows))
    return sum(end_s - each.since_s for each in new) <= len(rows) * in_flight.perceive.seconds(len(new))


def _is_late(waiting: WaitingRequest, wait_s: float, num_new: int, in_flight: InFlightRows, now_s: float) -> bool:
    """Return whether a request would miss its deadline only because it waits."""
    service_s = in_flight.perceive.seconds(num_new) + in_flight.iterations_per_row * in_flight.step.seconds(
        len(in_flight.rows) + num_new
    )
    deadline_s = min(waiting.due_s, waiting.starves_s)
    return now_s + service_s <= deadline_s < now_s + wait_s + service_s


def _meets_deadlines(urgent: Sequence[int], ready: Sequence[int], in_flight: InFlightRows, now_s: float) -> bool:
    """Return whether all urgent rows are in time if they advance alone, and every other row in flight is in time all the same.

    A row that is late already is not held up either. Otherwise a crowded server would run one row after the other, which takes
    longer than running them together, so that more rows are late, and the server would never recover.
    """
    step_s, together_s = in_flight.step.seconds(len(urgent)), in_flight.step.seconds(len(ready))
    first_s = max(in_flight.rows[n].iterations_left for n in urgent) * step_s
    if any(now_s + in_flight.rows[n].iterations_left * step_s > in_flight.rows[n].deadline_s for n in urgent):
        return False
    others = [in_flight.rows[n] for n in ready if n not in urgent]
    if any(row.num_passed >= in_flight.iterations_per_row for row in others):
        return False
    return all(now_s + first_s + row.iterations_left * together_s <= row.deadline_s for row in others)
