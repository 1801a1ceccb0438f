"""Iteration-level batching (Orca) for rows with deadlines: who joins a running batch at this turn, and which rows a turn advances.

New rows are perceived between two turns, and all rows in flight wait meanwhile. So rows come in groups, no more in flight than
pay (`Flight.num_groups`): one is a batch that nobody joins, as many as a row has turns let everybody in at once. No row waits for
a group to end that would miss its deadline by that, and none enters by whom one in flight would. Where one group pays and nobody
is in flight, who waits runs as a fixed batch does, in one call, which spares the engine and us what every turn costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from ros2_rfm_serving.dispatch.base import NOTHING, EngineView, Selection
from ros2_rfm_serving.dispatch.flight import Flight, Row
from ros2_rfm_serving.dispatch.waiting import Waiting

Asks = Callable[[], Sequence[float]]
MOST_WHOLE = 1.5
"""Times what the same rows take one step at a time: less is within the noise of few measurements."""


def joining(ranked: Sequence[Waiting], engine: EngineView, now_s: float, asks: Asks) -> Selection:
    """One more of those who wait, or nobody at this turn; or all that a whole batch holds. An engine that goes by calls takes
    whatever waits."""
    flight = engine.flight
    if flight is None:
        return Selection(ranked[: engine.batch_size])
    able = _able(ranked, flight)
    num_new = flight.num_entering + 1
    if not able or flight.is_full:
        return NOTHING
    batch = able[: engine.batch_size]
    if _may_be_whole(batch, flight) and _nobody_joins(len(able), engine, flight, asks) and _is_quicker(len(batch), engine, flight):
        return Selection(batch, whole=True)
    rows = flight.moving()
    if rows and (_hurts(rows, num_new, flight, now_s) or (num_new == 1 and _pays_later(able, rows, flight, now_s, asks))):
        return NOTHING
    return Selection(able[:1])


def advancing(flight: Flight, ready: Collection[int], now_s: float) -> Sequence[int]:
    """Return the rows that go on with this turn: all, unless some would be late in company and in time alone, and no other row is
    late then or has let as many turns pass as a row takes. A row without a deadline would otherwise wait for ever beside robots
    that ask again and again."""
    numbers = list(ready)
    step_s = flight.step.seconds(len(numbers))
    late = [n for n in numbers if now_s < flight.rows[n].deadline_s < now_s + flight.rows[n].turns_left * step_s]
    if not late or len(late) == len(numbers):
        return numbers
    urgent: list[int] = []
    for number in sorted(late, key=lambda n: flight.rows[n].deadline_s):
        if _saves([*urgent, number], numbers, flight, now_s):
            urgent.append(number)
    return urgent or numbers


def _able(ranked: Sequence[Waiting], flight: Flight) -> Sequence[Waiting]:
    """A session that was in a call of which nobody got an answer has the engine for itself until it has got one. Rows that wait
    for their session's next frame are in no call."""
    in_calls = [row for row in flight.rows.values() if not row.paused]
    if ranked and ranked[0].history.suspect:
        return () if in_calls else ranked[:1]
    if any(row.waiting.history.suspect for row in in_calls):
        return ()
    return [waiting for waiting in ranked if not waiting.history.suspect]


def _may_be_whole(batch: Sequence[Waiting], flight: Flight) -> bool:
    """Alike, nobody in flight, and no frame of a pipelined session that would wait for all of it."""
    if flight.rows or flight.promised:
        return False
    return all(each.request.pipelining is None and flight.knows(len(batch), each.request.num_steps) for each in batch)


def _nobody_joins(num_waiting: int, engine: EngineView, flight: Flight, asks: Asks) -> bool:
    """One group pays for those who are here, and for as many more as come on average while it runs."""
    num_sessions = len(asks())
    later = max(num_waiting, min(num_sessions, math.ceil(1.5 * num_waiting)))
    return all(flight.is_best_whole(num_here, num_sessions, engine.times) for num_here in (num_waiting, later))


def _is_quicker(num_rows: int, engine: EngineView, flight: Flight) -> bool:
    """As far as has been seen, which is seen again now and then: an engine may fill every batch up to its largest one."""
    times = engine.times
    is_quicker = num_rows > times.most_rows or times.seconds(num_rows) <= MOST_WHOLE * flight.seconds(num_rows)
    return is_quicker != flight.is_due(whole=not is_quicker)


def _hurts(rows: Sequence[Row], num_new: int, flight: Flight, now_s: float) -> bool:
    """A row in flight that would be in time would not be if so many were perceived now."""
    alone_s, company_s = flight.step.seconds(len(rows)), flight.step.seconds(len(rows) + num_new)
    stall_s = flight.perceive.seconds(num_new)
    return any(now_s + row.turns_left * alone_s <= row.deadline_s < now_s + stall_s + row.turns_left * company_s for row in rows)


def _pays_later(waiting: Sequence[Waiting], rows: Sequence[Row], flight: Flight, now_s: float, asks: Asks) -> bool:
    """They enter when a group has ended, or when they have waited for longer, rather than now."""
    if waiting[0].request.pipelining is not None or not flight.step.seconds(len(rows)):
        return False  # rows of its session wait for this frame; or nothing is known yet
    new = waiting[: max(1, flight.most - len(flight.rows))]
    groups = {row.num_turns for row in rows if not row.is_pipelined}
    num_groups = flight.num_groups(len(rows) + len(waiting), len(asks()))
    if len(groups) < num_groups and not _hold_up_more(new, rows, flight, now_s):
        return False
    wait_s = min(row.turns_left for row in rows) * flight.step.seconds(len(rows))
    return not any(_is_late(each, wait_s, len(new), flight, now_s) for each in new)


def _hold_up_more(new: Sequence[Waiting], rows: Sequence[Row], flight: Flight, now_s: float) -> bool:
    """Those in flight would wait longer for this perception than the new ones have waited and would wait for them, summed."""
    end_s = now_s + max(row.turns_left for row in rows) * flight.step.seconds(len(rows))
    return sum(end_s - each.since_s for each in new) <= len(rows) * flight.perceive.seconds(len(new))


def _is_late(waiting: Waiting, wait_s: float, num_new: int, flight: Flight, now_s: float) -> bool:
    """Only because it waits."""
    service_s = flight.perceive.seconds(num_new) + flight.turns_of_one * flight.step.seconds(len(flight.rows) + num_new)
    deadline_s = min(waiting.due_s, waiting.starves_s)
    return now_s + service_s <= deadline_s < now_s + wait_s + service_s


def _saves(urgent: Sequence[int], ready: Sequence[int], flight: Flight, now_s: float) -> bool:
    """Return whether all of these are in time if they go alone, and every other row in flight is so all the same.

    A row that is late already is not held up either. A crowded server would otherwise run one row after the other, which takes
    longer than running them together, so that more rows are late: it would never come back from that.
    """
    step_s, together_s = flight.step.seconds(len(urgent)), flight.step.seconds(len(ready))
    first_s = max(flight.rows[n].turns_left for n in urgent) * step_s
    if any(now_s + flight.rows[n].turns_left * step_s > flight.rows[n].deadline_s for n in urgent):
        return False
    others = [flight.rows[n] for n in ready if n not in urgent]
    if any(row.num_passed >= flight.turns_of_one for row in others):
        return False
    return all(now_s + first_s + row.turns_left * together_s <= row.deadline_s for row in others)
