"""Call recorder of a server: every decision in order, with its arguments and its result."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.server import ServerBrain

DECISIONS = (
    "open_session",
    "close_session",
    "take_new",
    "refuse_waiting",
    "collect_sessions",
    "reset_episode",
    "resize",
    "reconfigure",
    "declare",
    "charge",
    "unfit",
    "deposit",
    "superseded_early",
    "begin",
    "entered",
    "turn",
    "refetches",
    "ended",
    "reply",
    "snapshot",
)
"""Calls of a `ServerBrain` that change it, or that matter for later questions."""
REFUSALS = ("admitted",)
"""Calls that are noted only when they refuse, because otherwise they change nothing."""


class Note(NamedTuple):
    """One decision. Its contents do not change any more, so that another thread can write it later."""

    t: float
    """Time after the decision by the writer's clock."""
    do: str
    args: tuple[Any, ...]
    gave: Any
    """Result of the call, or the `RfmError` that it raised."""
    look_again_s: float


class Witness:
    """Proxy of a decision core that notes its calls. Calls are made one at a time, so that the notes are in order."""

    def __init__(self, brain: ServerBrain, clock: Callable[[], float], note: Callable[[Note], None]) -> None:
        self.brain, self._clock, self._note = brain, clock, note
        for do in DECISIONS:
            setattr(self, do, partial(self._noted, do, getattr(brain, do)))
        for do in REFUSALS:
            setattr(self, do, partial(self._refusals, do, getattr(brain, do)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.brain, name)

    def _noted(self, do: str, decide: Callable[..., Any], *args: Any) -> Any:
        try:
            gave = decide(*args)
        except RfmError as error:
            self._note(Note(self._clock(), do, args, error, 0.0))
            raise
        self._note(Note(self._clock(), do, args, gave, self.brain.look_again_s))
        return gave

    def _refusals(self, do: str, decide: Callable[..., Any], *args: Any) -> Any:
        try:
            return decide(*args)
        except RfmError as error:
            self._note(Note(self._clock(), do, args, error, 0.0))
            raise


def witnessed(brain: ServerBrain, clock: Callable[[], float], note: Callable[[Note], None]) -> ServerBrain:
    return cast(ServerBrain, Witness(brain, clock, note))


def unwitnessed(brain: ServerBrain) -> ServerBrain:
    return cast(Witness, brain).brain
