"""Fault injection between robots and servers: a `FaultPlan` decides the fate of each message, in virtual time and live.

The module is pure and seeded: the same plan, random source and times give the same faults.
"""

from __future__ import annotations

import enum
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.types import ActionChunk, Array, EncodedImage, JudgeVerdict, ObservationRequest, Reply, RequestId, SubgoalPlan

Message = TypeVar("Message", ObservationRequest, Reply)


class Direction(enum.Enum):
    UP = "up"
    """From a robot to a server."""
    DOWN = "down"
    """From a server to a robot."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Interval in which no message passes, in one direction or in both."""

    start_s: float
    end_s: float
    direction: Direction | None = None
    """Direction of the cut; None: both."""

    def __post_init__(self) -> None:
        if not self.start_s < self.end_s:
            raise ConfigurationError(f"is {self.end_s:g}", key="cut.end_s", fix=f"give a time after its start at {self.start_s:g}")

    def concerns(self, direction: Direction, now_s: float) -> bool:
        return self.start_s <= now_s < self.end_s and self.direction in (None, direction)


@dataclass(frozen=True, kw_only=True)
class FaultPlan:
    """Faults of messages in each direction. Shares are of all messages, [0, 1]."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    """Share held back by `hold_s`, so that later messages overtake them; jitter alone keeps the order."""
    corrupt: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    """The delay is between `delay_s` - `jitter_s` and `delay_s` + `jitter_s`, and never negative."""
    hold_s: float = 0.1
    cuts: tuple[Cut, ...] = ()
    """Times are in seconds since the start of the run that the plan is for."""

    def __post_init__(self) -> None:
        for key in ("drop", "duplicate", "reorder", "corrupt"):
            if not 0 <= getattr(self, key) <= 1:
                raise ConfigurationError(f"is {getattr(self, key):g}", key=f"faults.{key}", fix="give a share, 0 to 1")
        for key in ("delay_s", "jitter_s", "hold_s"):
            if not 0 <= getattr(self, key) < math.inf:
                raise ConfigurationError(f"is {getattr(self, key):g}", key=f"faults.{key}", fix="give 0 or more")

    @property
    def is_clean(self) -> bool:
        """True for a plan that causes no fault."""
        return replace(self, hold_s=0.0) == FaultPlan(hold_s=0.0)

    def connected(self, direction: Direction, now_s: float) -> bool:
        return not any(cut.concerns(direction, now_s) for cut in self.cuts)

    @classmethod
    def parse(cls, text: str) -> FaultPlan:
        """Parse `drop=0.05 delay_ms=25 jitter_ms=10 duplicate=0.01 reorder=0.01 hold_ms=100 corrupt=0.001 cut=10-12
        cut_up=20-25,40-`.

        Cuts are in seconds, several are separated by commas, and one without an end lasts for ever; `cut_up` and `cut_down` are one
        way.

        Raises: `ConfigurationError`.
        """
        values: dict[str, Any] = {}
        cuts: list[Cut] = []
        for entry in text.split():
            key, equals, value = entry.partition("=")
            if key in _CUTS:
                cuts += [_cut(key, window) for window in value.split(",")]
            elif key in _NUMBERS and equals:
                name, scale = _NUMBERS[key]
                values[name] = scale * _number(key, value)
            else:
                raise ConfigurationError(
                    f"{entry!r} is no fault", key="faults", fix=f"known here: {', '.join([*_NUMBERS, *_CUTS])}"
                )
        return cls(**values, cuts=tuple(cuts))


_CUTS = {"cut": None, "cut_up": Direction.UP, "cut_down": Direction.DOWN}
_NUMBERS = {
    field.name.replace("_s", "_ms"): (field.name, 1e-3 if field.name.endswith("_s") else 1.0)
    for field in fields(FaultPlan)
    if field.name != "cuts"
}
"""Key of the text -> field, and the factor that converts its number"""


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"{text!r} is no number", key=f"faults.{key}", fix=f"write {key}=<number>") from None


def _cut(key: str, window: str) -> Cut:
    start, dash, end = window.partition("-")
    if not dash:
        raise ConfigurationError(f"{window!r} has no end", key=f"faults.{key}", fix=f"write {key}=<start>-<end>, in seconds")
    return Cut(start_s=_number(key, start), end_s=_number(key, end) if end else math.inf, direction=_CUTS[key])


class Delivery(NamedTuple):
    """One copy of a message."""

    delay_s: float
    corrupt: bool = False


class FaultyWire:
    """One connection. `happened` counts the faults under `cut`, `dropped`, `duplicated`, `reordered` and `corrupted`."""

    def __init__(self, plan: FaultPlan, rng: random.Random) -> None:
        self.happened: Counter[str] = Counter()
        self._plan, self._rng = plan, rng
        self._last_due_s = dict.fromkeys(Direction, -math.inf)

    def deliveries(self, direction: Direction, now_s: float, *, reliable: bool = False) -> tuple[Delivery, ...]:
        """Return the copies of a message that is sent now; empty: it never arrives.

        A reliable message is repeated until it arrives unchanged, so that only a cut keeps it away.
        """
        plan = self._plan
        if not plan.connected(direction, now_s):
            self.happened["cut"] += 1
            return ()
        if reliable:
            return (Delivery(self._ordered_s(direction, now_s)),)
        if self._happens(plan.drop, "dropped"):
            return ()
        copies = 2 if self._happens(plan.duplicate, "duplicated") else 1
        return tuple([self._copy(direction, now_s) for _ in range(copies)])

    def _copy(self, direction: Direction, now_s: float) -> Delivery:
        held = self._happens(self._plan.reorder, "reordered")
        delay_s = self._delay_s() + self._plan.hold_s if held else self._ordered_s(direction, now_s)
        return Delivery(delay_s, self._happens(self._plan.corrupt, "corrupted"))

    def _ordered_s(self, direction: Direction, now_s: float) -> float:
        """Return the delay of a message that never arrives before one that was sent earlier."""
        due_s = self._last_due_s[direction] = max(now_s + self._delay_s(), self._last_due_s[direction])
        return due_s - now_s

    def _delay_s(self) -> float:
        plan = self._plan
        if not plan.jitter_s:
            return plan.delay_s
        return max(0.0, self._rng.uniform(plan.delay_s - plan.jitter_s, plan.delay_s + plan.jitter_s))

    def _happens(self, share: float, name: str) -> bool:
        """Return whether a fault happens. One with a share of 0 draws no random number, so the others happen as they would without
        it."""
        if not share or self._rng.random() >= share:
            return False
        self.happened[name] += 1
        return True


# --- corruption -----------------------------------------------------------------------------------------------------------

Damage = Callable[[Any, random.Random], Any]


def corrupt(message: Message, rng: random.Random) -> Message:
    """Return the message changed in a way that no honest peer would send it.

    Values that are wrong but plausible are not generated: only the transport's checksums can detect those.
    """
    damage = rng.choice([*_IDENTITY, *_CONTENT[type(message)]])
    damaged: Message = damage(message, rng)
    return damaged


def _with_id(change: Callable[[RequestId], RequestId]) -> Damage:
    return lambda message, rng: replace(message, id=change(message.id))


_IDENTITY: tuple[Damage, ...] = (
    _with_id(lambda id_: replace(id_, session_epoch=id_.session_epoch + 1)),
    _with_id(lambda id_: replace(id_, sequence=id_.sequence + 1)),
    _with_id(lambda id_: replace(id_, episode=id_.episode + 1)),
    _with_id(lambda id_: replace(id_, component="nobody")),
)


def _non_finite(values: Array, rng: random.Random) -> Array:
    values = values.copy() if values.size else _widened(values)
    values.flat[rng.randrange(values.size)] = rng.choice([math.nan, math.inf, -math.inf])
    return values


def _widened(values: Array) -> Array:
    """Return the values with one column too many."""
    return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, 1)])


def _shortened(values: Array) -> Array:
    return values[: len(values) // 2] if values.size else _widened(values)


def _half(image: EncodedImage) -> EncodedImage:
    return replace(image, data=bytes(image.data)[: len(image.data) // 2])


_REQUEST: tuple[Damage, ...] = (
    lambda request, rng: replace(request, state=_non_finite(request.state, rng)),
    lambda request, rng: replace(request, state=_widened(request.state)),
    lambda request, rng: replace(request, state=_shortened(request.state), images=tuple(map(_half, request.images))),
)
_REPLY: tuple[Damage, ...] = (lambda reply, rng: replace(reply, model_hash=f"{reply.model_hash}0"),)
_CHUNK: tuple[Damage, ...] = (
    lambda chunk, rng: replace(chunk, chunk_robot=_non_finite(chunk.chunk_robot, rng)),
    lambda chunk, rng: replace(chunk, chunk_robot=_widened(chunk.chunk_robot)),
    lambda chunk, rng: replace(chunk, chunk_robot=_shortened(chunk.chunk_robot)),
    lambda chunk, rng: replace(chunk, chunk_model=_widened(chunk.chunk_model)),
)
_CONTENT: dict[type, tuple[Damage, ...]] = {
    ObservationRequest: _REQUEST,
    ActionChunk: (*_REPLY, *_CHUNK),
    JudgeVerdict: _REPLY,
    SubgoalPlan: _REPLY,
}
