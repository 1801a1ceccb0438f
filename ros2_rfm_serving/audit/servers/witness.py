"""Call recorder of a server: every decision in order, with its arguments and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from ros2_rfm_serving.server import RunningBatch, ServerCore, events

INPUTS: Mapping[str, type] = MappingProxyType(
    {
        "open_session": events.SessionRequested,
        "close_session": events.SessionClosed,
        "refuse_waiting": events.QueueCleared,
        "collect_sessions": events.LivenessChecked,
        "reset_episode": events.EpisodeStarted,
        "resize": events.LimitsChanged,
        "reconfigure": events.ServerConfigurationChanged,
        "declare": events.RatesScheduled,
        "admitted": events.AdmissionChecked,
        "charge": events.RequestReceived,
        "unfit": events.RequestRejected,
        "deposit": events.RequestEnqueued,
        "superseded_early": events.RequestSuperseded,
        "begin": events.EnginePolled,
        "entered": events.BatchesPerceived,
        "iterate": events.SolverStepPolled,
        "refetches": events.RefetchPolled,
        "ended": events.BatchEnded,
        "reply": events.AnswerReceived,
        "snapshot": events.FiguresRequested,
    }
)
"""Method of a `ServerCore` -> its event, whose fields are the arguments in their order, without the time."""
DRAIN = "set_accepting"
"""Method with one event for each value of its argument."""
TIMED = frozenset({"collect_sessions", "charge", "deposit", "begin", "entered", "iterate", "refetches", "ended", "snapshot"})
"""Methods whose last argument is the time."""
REFUSALS = frozenset({"admitted"})
"""Methods that are recorded only when they refuse, because otherwise they change nothing."""


class Note(NamedTuple):
    """One decision. Its contents do not change any more, so that another thread can write it later."""

    t: float
    """Time after the decision by the writer's clock."""
    method: str
    args: tuple[Any, ...]
    answer: Any
    """Result of the call, or the error that it raised."""
    next_poll_s: float
    """`ServerCore.poll_at_s` after the decision."""

    @property
    def event(self) -> events.Event:
        """Return the call as an event."""
        if self.method == DRAIN:
            return events.DrainCanceled() if self.args[0] else events.DrainStarted()
        args = self.args[:-1] if self.method in TIMED else self.args
        event: events.Event = INPUTS[self.method](*map(_field_of, args))
        return event

    @property
    def now_s(self) -> float | None:
        """Return the time of the event; None: it has none."""
        return self.args[-1] if self.method in TIMED else None


def _field_of(value: Any) -> Any:
    """Return an argument of a call as an event has it."""
    if isinstance(value, RunningBatch):
        return value.number
    return tuple(value) if isinstance(value, (list, set, frozenset)) else value


class Witness:
    """Proxy of a decision core that notes its calls. Calls are made one at a time, so that the notes are in order."""

    def __init__(self, brain: ServerCore, clock: Callable[[], float], note: Callable[[Note], None]) -> None:
        self.brain, self._clock, self._note = brain, clock, note
        for method in (*INPUTS, DRAIN):
            record = self._refusals if method in REFUSALS else self._noted
            setattr(self, method, partial(record, method, getattr(brain, method)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.brain, name)

    def _noted(self, method: str, decide: Callable[..., Any], *args: Any) -> Any:
        answer = self._refusals(method, decide, *args)
        self._note(Note(self._clock(), method, args, answer, self.brain.poll_at_s))
        return answer

    def _refusals(self, method: str, decide: Callable[..., Any], *args: Any) -> Any:
        try:
            return decide(*args)
        except Exception as error:
            self._note(Note(self._clock(), method, args, error, self.brain.poll_at_s))
            raise


def witnessed(brain: ServerCore, clock: Callable[[], float], note: Callable[[Note], None]) -> ServerCore:
    return cast(ServerCore, Witness(brain, clock, note))


def unwitnessed(brain: ServerCore) -> ServerCore:
    return cast(Witness, brain).brain
