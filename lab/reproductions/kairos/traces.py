"""Replay of recorded tasks (Kairos §5.1): robots repeat the timing of recorded episodes.

A robot sends a request at the recorded action of its chunk, executes as many steps as in the recording, and stands still while the
next chunk is late. The content of replies does not matter any more.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Protocol

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.types import (
    SYSTEM1,
    ExecutionReport,
    ObservationRequest,
    Reply,
    RequestId,
    SessionGrant,
    SessionRequest,
    empty,
)
from ros2_rfm_serving.virtual_time.events import Events

COLUMNS = ("policy", "value", "task", "seed", "success", "executed")
NO_STATE = empty(0)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One episode, recorded alone, reduced to the number of actions that every round executed."""

    policy: str
    """Horizon policy of the recording; the next field has its H or t."""
    value: float
    task: str
    seed: int
    success: bool
    executed: tuple[int, ...]
    """Control steps per round."""

    @property
    def steps(self) -> int:
        return sum(self.executed)


def write_traces(traces: Iterable[Trace]) -> str:
    """Return the traces as CSV."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for trace in traces:
        executed = " ".join(map(str, trace.executed))
        writer.writerow((trace.policy, f"{trace.value:g}", trace.task, trace.seed, int(trace.success), executed))
    return text.getvalue()


def load_traces(file: Path) -> list[Trace]:
    """Load traces. Raises: `ConfigurationError`."""
    try:
        rows = list(csv.reader(file.read_text(encoding="utf-8").splitlines()))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError("cannot be read as text", file=str(file), fix="check the path") from error
    if not rows or tuple(rows[0]) != COLUMNS:
        raise ConfigurationError(f"has no header `{','.join(COLUMNS)}`", file=str(file), line=1, fix="record the traces again")
    traces = [_trace(row, file, line) for line, row in enumerate(rows[1:], start=2)]
    if not traces:
        raise ConfigurationError("holds no traces", file=str(file), fix="record them again")
    return traces


def _trace(row: list[str], file: Path, line: int) -> Trace:
    try:
        policy, value, task, seed, success, executed = row
        steps = tuple(int(part) for part in executed.split())
        trace = Trace(policy=policy, value=float(value), task=task, seed=int(seed), success=bool(int(success)), executed=steps)
    except ValueError:
        fix = "give " + ",".join(COLUMNS)
        raise ConfigurationError(f"{','.join(row)!r} is no trace", file=str(file), line=line, fix=fix) from None
    if not steps or min(steps) < 1:
        raise ConfigurationError(
            f"{executed!r}: every round executes something", file=str(file), line=line, key="executed", fix="1 or more"
        )
    return trace


def cut_anew(trace: Trace, steps: int) -> Trace:
    """Return the same episode with this number of steps executed per chunk."""
    rounds, rest = divmod(trace.steps, steps)
    return replace(trace, executed=(steps,) * rounds + (rest,) * bool(rest))


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Timing of a robot."""

    control_rate_hz: float
    lead_steps: int
    """Largest number of actions that are left when it requests the next chunk; 0: it requests when it has none (synchronous)."""
    slo_s: float = 0.0
    """SLO of a request, as in its session."""


@dataclass(slots=True)
class Outcome:
    """Outcome of one task of the replay, in seconds of virtual time."""

    trace: Trace
    began_s: float
    """Time when its first request was sent."""
    ended_s: float = 0.0
    """Time of its last action."""
    stalled_s: float = 0.0
    """Time without an action to execute, after the first."""
    waits_s: list[float] = field(default_factory=list)
    """Time from request to reply, per round."""
    ages_s: list[float] = field(default_factory=list)
    """Age of the observation when the engine began with it, per round."""
    moved_steps: float = 0.0
    """Control steps that the robot executed in those times, over all rounds."""

    @property
    def latency_s(self) -> float:
        return self.ended_s - self.began_s


class Service(Protocol):
    """Server interface of trace robots."""

    way_s: float
    """One-way delay of an observation."""

    def open(self, request: SessionRequest) -> SessionGrant: ...
    def close(self, robot: str, epoch: int) -> None: ...
    def send(self, request: ObservationRequest, client: TraceRobot) -> None:
        """Send a request, whose reply comes through `client.receive`."""


class TraceRobot:
    """Robot that replays one task after another."""

    def __init__(
        self, name: str, pace: Pace, events: Events, service: Service, done: Callable[[TraceRobot, Outcome], None]
    ) -> None:
        self.name = name
        self._pace, self._events, self._service, self._done = pace, events, service, done
        self._episode = self._sequence = 0
        self._epoch = 0
        self._waits = False
        self._way_s = service.way_s

    def begin(self, trace: Trace) -> None:
        """Open the session if there is none, and request the first chunk."""
        if not self._epoch:
            self._epoch = self._service.open(
                SessionRequest(robot=self.name, component=SYSTEM1, slo_s=self._pace.slo_s)
            ).session_epoch
        self._episode += 1
        self._round = 0
        self._executing = (0.0, 0.0)
        self._outcome = Outcome(trace=trace, began_s=self._events.now_s)
        self._ask()

    def leave(self) -> None:
        if self._epoch:
            self._service.close(self.name, self._epoch)
            self._epoch = 0

    def receive(self, reply: Reply) -> None:
        """Receive the next chunk, which is executed once the last one is over. A reply to a replaced observation is ignored."""
        if reply.id.sequence != self._sequence:
            return
        now_s = self._events.now_s
        _, over_s = self._executing
        self._outcome.waits_s.append(now_s - self._asked_s)
        self._waits = False
        self._age(reply.served.queue_wait_s, over_s)
        if self._round:
            self._outcome.stalled_s += max(0.0, now_s - over_s)
        self._events.at(max(now_s, over_s), self._execute)

    def _age(self, queued_s: float, over_s: float) -> None:
        """Record the observation's age when its batch begins; a robot without actions does not move meanwhile."""
        began_s = self._observed_s + self._way_s + queued_s
        self._outcome.ages_s.append(began_s - self._observed_s)
        if self._round:
            self._outcome.moved_steps += max(0.0, min(began_s, over_s) - self._observed_s) * self._pace.control_rate_hz

    def ask_again(self, request: RequestId) -> None:
        """Send a newer observation, unless the reply has arrived meanwhile, or a newer one is on its way."""
        if self._waits and request.sequence == self._sequence:
            self._observe()

    def _execute(self) -> None:
        now_s, trace = self._events.now_s, self._outcome.trace
        steps = trace.executed[self._round]
        self._executing = (now_s, now_s + steps / self._pace.control_rate_hz)
        self._round += 1
        if self._round == len(trace.executed):
            self._events.at(self._executing[1], self._end)
        else:
            lead = min(self._pace.lead_steps, steps)
            self._events.at(now_s + (steps - lead) / self._pace.control_rate_hz, self._ask)

    def _ask(self) -> None:
        self._asked_s, self._waits = self._events.now_s, True
        self._observe()

    def _observe(self) -> None:
        now_s = self._observed_s = self._events.now_s
        self._sequence += 1
        self._service.send(self._request(now_s), self)

    def _request(self, now_s: float) -> ObservationRequest:
        began_s, over_s = self._executing
        executing = self._round > 0
        trace = self._outcome.trace
        return ObservationRequest(
            id=RequestId(
                robot=self.name, component=SYSTEM1, session_epoch=self._epoch, episode=self._episode, sequence=self._sequence
            ),
            stamp_ns=round(1e9 * now_s),
            instruction=trace.task,
            state=NO_STATE,
            report=ExecutionReport(
                executed_steps=trace.executed[self._round - 1] if executing else 0,
                executing_s=now_s - began_s if executing else 0.0,
                remaining_s=over_s - now_s if executing else 0.0,
                last_wait_s=self._outcome.waits_s[-1] if self._outcome.waits_s else 0.0,
            ),
            episode_start=not executing,
        )

    def _end(self) -> None:
        self._outcome.ended_s = self._events.now_s
        self._done(self, self._outcome)
