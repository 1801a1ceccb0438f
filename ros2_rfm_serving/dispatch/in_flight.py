"""Rows in flight of an engine that advances them one solver step at a time (`engines.base.Stepping`), as policies see them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ros2_rfm_serving.dispatch.service_times import ServiceTimes
from ros2_rfm_serving.dispatch.waiting_request import WaitingRequest
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.types.desynchronisation import in_flight_correction
from ros2_rfm_serving.types.state import Kept, check_names, kept, restore, state_of

MAX_ALIKE = 50
"""Number of consecutive batches of one kind (whole or stepwise) after which the kind that seemed slower is tried again, because the
times may change."""


@dataclass(frozen=True, kw_only=True)
class StepCosts:
    """Costs measured before the first request, in seconds by number of rows, beginning at one row."""

    perceive_s: tuple[float, ...] = ()
    step_s: tuple[float, ...] = ()
    whole_s: tuple[float, ...] = ()
    """Time of a batch in one call."""
    num_iterations: int = 1
    """Solver steps of a request that does not set its own number."""
    scatter: float = 0.0
    """Relative difference between repeated measurements."""


@dataclass(eq=False, slots=True)
class InFlightRow:
    """One request between `begin` and its answer."""

    KEPT: ClassVar[Kept] = kept(
        *("moved_s", "sum_rows", "num_passed", "num_before", "num_after"),
        num_steps_left="iterations_left",
        num_steps_done="num_iterations",
        rows_of_last_call="num_in_last_call",
        is_paused="paused",
    )
    """Everything except the request, which is that of the batch with the same number."""

    waiting: WaitingRequest
    moved_s: float
    """Time at which the row began, entered or last advanced."""
    iterations_left: int = 0
    """Remaining solver steps; 0: it is being perceived."""
    num_iterations: int = 0
    """Number of turns that the row has had."""
    sum_rows: int = 0
    """Sum of the rows in each of these turns, including itself."""
    num_in_last_call: int = 1
    """Rows of the engine's last call that included this row."""
    num_passed: int = 0
    """Turns that advanced other rows although this one was ready."""
    num_before: int = 0
    """Rows that were in flight when it entered, or that entered with it and arrived earlier; 0 in pipelined sessions."""
    num_after: int = 0
    """Rows that entered later, or that entered with it and arrived later."""
    paused: bool = False
    """The row waits for its session's next frame."""

    @property
    def deadline_s(self) -> float:
        return min(self.waiting.due_s, self.waiting.starves_s)

    @property
    def delay_correction(self) -> float:
        """Return the share of its time in flight by which it would be later, one row after the other
        (`types/desynchronisation.py`)."""
        return in_flight_correction(self.num_before, self.num_after)

    @property
    def is_pipelined(self) -> bool:
        return self.waiting.request.pipelining is not None

    @property
    def mean_rows(self) -> int:
        return max(1, round(self.sum_rows / self.num_iterations)) if self.num_iterations else 1


@dataclass(eq=False, slots=True)
class InFlightRows:
    """State of all rows in flight: entering, advancing and leaving. Times are seconds on the server's clock."""

    KEPT: ClassVar[Kept] = kept(
        *("num_whole", "was_whole", "num_alike", "scatter"),
        perception_times="perceive",
        step_times="step",
        expected_num_steps="iterations_per_row",
        last_requested_num_steps="num_steps",
        last_advanced="advanced",
    )
    """Everything except the rows. Capacity and promised rows follow from the server's limits and sessions."""

    capacity: int
    """Maximum number of rows in the engine."""
    perceive: ServiceTimes = field(default_factory=ServiceTimes)
    """Time of one joint perception, by number of new rows."""
    step: ServiceTimes = field(default_factory=ServiceTimes)
    """Time of one turn, by number of rows."""
    iterations_per_row: int = 1
    """Turns of the row that entered last, which are expected of the next one."""
    rows: dict[int, InFlightRow] = field(default_factory=dict)
    """Number of the work -> row, in the order in which they began."""
    advanced: tuple[int, ...] = ()
    """Rows of the last turn."""
    num_steps: int = 0
    """Solver steps that the row that entered last had requested."""
    promised: int = 0
    """Rows reserved for pipelined sessions that are open."""
    num_whole: int = 0
    """Rows of the batch that runs as a whole; 0: none does."""
    was_whole: bool = False
    """The last batch that began on an empty engine ran as a whole."""
    num_alike: int = 0
    """Number of consecutive batches of the kind of `was_whole`."""
    scatter: float = 0.0
    """Relative gain in throughput that more than one group must reach; a smaller one would be chance."""

    @classmethod
    def from_costs(cls, capacity: int, promised: int, costs: StepCosts) -> InFlightRows:
        """Return an empty state that starts with measured costs."""
        perceive, step = ServiceTimes(costs.perceive_s), ServiceTimes(costs.step_s)
        return cls(capacity, perceive, step, iterations_per_row=costs.num_iterations, promised=promised, scatter=costs.scatter)

    def state(self) -> dict[str, Any]:
        """Return the values of all rows and of all measurements, for a snapshot."""
        return {**state_of(self, self.KEPT), "rows": {number: state_of(row, InFlightRow.KEPT) for number, row in self.rows.items()}}

    def restore_rows(self, state: Mapping[str, Any], requests: Mapping[int, WaitingRequest]) -> None:
        """Continue from a value of `state`. requests: number of a row -> its request.
        Raises: `RfmError` for names that are missing or unknown, and for a row without a request."""
        check_names("InFlightRows", {**self.KEPT, "rows": "rows"}, state)
        restore(self, self.KEPT, {name: value for name, value in state.items() if name != "rows"})
        if unknown := state["rows"].keys() - requests.keys():
            raise RfmError(f"the snapshot has rows in flight without a batch: {', '.join(map(str, sorted(unknown)))}")
        for number, row in state["rows"].items():
            self.rows[number] = InFlightRow(requests[number], 0.0)
            restore(self.rows[number], InFlightRow.KEPT, row)

    @property
    def max_rows(self) -> int:
        """Return the maximum number of concurrent rows; one more would lengthen turns more than it shortens the queue."""
        return min(self.capacity, self.step.saturation(self.capacity))

    @property
    def is_full(self) -> bool:
        """Return whether no row can enter. Rows of pipelined sessions stay and wait between two frames, so that only their memory
        counts."""
        if self.num_whole:
            return True
        num_rows, most = len(self.rows), self.max_rows
        return num_rows >= self.capacity or (num_rows >= most and sum(not row.is_pipelined for row in self.rows.values()) >= most)

    @property
    def num_entering(self) -> int:
        return sum(not row.iterations_left for row in self.rows.values())

    @property
    def leaving(self) -> int:
        """Return the number of rows that leave together next."""
        lefts = [row.iterations_left for row in self.rows.values()]
        return lefts.count(min(lefts)) if lefts else self.max_rows

    def moving(self) -> list[InFlightRow]:
        """Return the rows that advance with the next turn."""
        return [row for row in self.rows.values() if row.iterations_left and not row.paused]

    def seconds(self, num_rows: int) -> float:
        """Return the time from entering to the answer of `num_rows` that enter together and stay together."""
        return self.perceive.seconds(num_rows) + self.iterations_per_row * self.step.seconds(num_rows)

    def num_groups(self, num_present: int, num_sessions: int) -> int:
        """Return the number of groups in flight, of rows at the same step each, that maximises throughput when `num_present` of all
        sessions wait or are in flight.

        More groups shorten the wait for one to end, and increase the number of perceptions that hold up all rows: the lot size
        problem (Harris 1913). m rows are answered in the time of one perception and 1/c of the turns, while c m are in flight and
        m/2 wait (Little), or fewer where most sessions are here already.
        """
        rates_hz = {groups: self._rate_hz(groups, num_present, num_sessions) for groups in self._groups(num_present)}
        best = max(rates_hz, key=rates_hz.__getitem__)
        return best if rates_hz[best] > (1.0 + self.scatter) * rates_hz[1] else 1

    def is_best_whole(self, num_present: int, num_sessions: int, whole: ServiceTimes) -> bool:
        """Return whether one group, or batches that run as a whole in the time `whole`, serve as much as any number of groups."""
        rows, least_hz = self._rows_of_group(1, num_present, num_sessions), self._rate_hz(1, num_present, num_sessions)
        if rows <= whole.max_observed_rows:  # one bad measurement of a size does not decide
            least_hz = max(least_hz, rows / max(whole.between(rows), 1e-9))
        others = [groups for groups in self._groups(num_present) if groups > 1]
        return all(self._rate_hz(groups, num_present, num_sessions) <= (1.0 + self.scatter) * least_hz for groups in others)

    def _groups(self, num_present: int) -> range:
        return range(1, max(1, min(self.iterations_per_row, num_present)) + 1)

    def _rate_hz(self, groups: int, num_present: int, num_sessions: int) -> float:
        rows = self._rows_of_group(groups, num_present, num_sessions)
        took_s = self.perceive.between(rows) + self.iterations_per_row / groups * self.step.between(groups * rows)
        return rows / max(took_s, 1e-9)

    def _rows_of_group(self, groups: int, num_present: int, num_sessions: int) -> float:
        waiting = max(0.0, min(0.5, 1.0 - num_present / max(1, num_sessions)))
        return min(num_present / (groups + waiting), self.max_rows / groups)

    def knows(self, num_rows: int, num_steps: int) -> bool:
        """Return whether perception and step times are known for so many rows with so many solver steps."""
        return num_rows <= min(self.perceive.max_observed_rows, self.step.max_observed_rows) and num_steps == self.num_steps

    def is_due(self, *, whole: bool) -> bool:
        """Return whether the given kind of batch has not run for long enough to be tried again."""
        return self.was_whole != whole and self.num_alike >= MAX_ALIKE

    def begins_in_s(self, position: int) -> float:
        """Return when the request at a position of the queue may enter: now, or when enough rows have left."""
        free = self.max_rows - len(self.rows)
        if position < free or not self.rows:
            return 0.0
        step_s = self.step.seconds(len(self.rows))
        ends_s = sorted(row.iterations_left * step_s for row in self.rows.values())
        rounds, place = divmod(position - max(free, 0), len(ends_s))
        return ends_s[place] + rounds * self.seconds(len(ends_s))

    # --- updates ---

    def on_begun(self, number: int, waiting: WaitingRequest, now_s: float) -> None:
        if not self.rows:
            self._begun_alike(whole=False)
        self.rows[number] = InFlightRow(waiting, now_s)

    def on_whole_batch(self, num_rows: int) -> None:
        self._begun_alike(whole=True)
        self.num_whole = num_rows

    def _begun_alike(self, *, whole: bool) -> None:
        self.num_alike = self.num_alike + 1 if whole == self.was_whole else 1
        self.was_whole = whole

    def on_entered(self, iterations: Sequence[tuple[int, int]], now_s: float) -> list[int]:
        """Record the rows that have been perceived and return the numbers of those that did not enter.
        turns: (number, turns that it will take) of the rows that entered."""
        new = {number: row for number, row in self.rows.items() if not row.iterations_left}
        if iterations:
            self.perceive.observe(len(new), now_s - max(row.moved_s for row in new.values()))
        for row in new.values():
            row.num_in_last_call, row.moved_s = len(new), now_s
        self._count_neighbours([new[number] for number, _ in iterations if not new[number].is_pipelined])
        for number, num_turns in iterations:
            row = new.pop(number)
            row.iterations_left = self.iterations_per_row = num_turns
            self.num_steps = row.waiting.request.num_steps
        return list(new)

    def _count_neighbours(self, entered: Sequence[InFlightRow]) -> None:
        """Record for each row how many were in flight before and after it."""
        there = [row for row in self.rows.values() if row.iterations_left and not row.is_pipelined]
        for row in there:
            row.num_after += len(entered)
        for place, row in enumerate(sorted(entered, key=lambda row: row.waiting.arrived_s)):
            row.num_before, row.num_after = len(there) + place, len(entered) - 1 - place

    def on_iteration(self, duration_s: float) -> None:
        """Record the time of the last turn, which the rows in `advanced` had."""
        if duration_s > 0.0 and self.advanced:
            self.step.observe(len(self.advanced), duration_s)

    def pause(self, ready: Collection[int]) -> None:
        """Mark all rows that have entered and are not ready as paused."""
        for number, row in self.rows.items():
            row.paused = bool(row.iterations_left) and number not in ready

    def advance(self, rows: Sequence[int], now_s: float) -> None:
        """Record that these rows advance now."""
        self.advanced = tuple(rows)
        for number in self.rows.keys() - rows if len(rows) < len(self.rows) else ():
            self.rows[number].num_passed += not self.rows[number].paused
        for number in rows:
            row = self.rows[number]
            row.num_in_last_call, row.moved_s = len(rows), now_s
            row.sum_rows += len(rows)
            row.num_iterations += 1
            row.iterations_left = max(1, row.iterations_left - 1)  # the engine says when it is done
