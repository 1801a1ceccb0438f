"""Looks at every robot of a simulated factory from outside: by what its brain is told, and what comes out of it."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from ros2_rfm_serving.robot import RobotCore
from ros2_rfm_serving.robot.why import CommandSource
from ros2_rfm_serving.types import SYSTEM1, RequestId, RobotState, Schedule

STANDS = (RobotState.STALLED, RobotState.DEAD)
"""States in which a robot executes nothing that models said."""


@dataclass(eq=False)
class Seen:
    """One robot."""

    asked: dict[str, tuple[str, RequestId, float]] = field(default_factory=dict)
    """Component -> server and the latest request, as long as it waits, and since when."""
    observed_s: float = -1.0
    """The observation behind what it executes."""
    taken: RequestId | None = None
    """Whose rows those are."""
    fresh: bool = False
    chunks_s: list[float] = field(default_factory=list)
    """When it began to execute each of them."""
    answers: list[tuple[str, float, float]] = field(default_factory=list)
    """Component, when it asked, and how long it waited; inf: it gave up, or turned to somebody else."""
    told: list[tuple[float, Schedule]] = field(default_factory=list)
    """Every schedule that it followed, and since when."""


class Witness:
    """Of the iron rules of docs/safety.md, at every tick and every reply; times of chunks are kept for whoever judges them."""

    def __init__(self) -> None:
        self.robots: dict[int, Seen] = defaultdict(Seen)
        """By identity: a name may have several lives."""
        self.names: dict[int, str] = {}
        self._brains: list[RobotCore] = []
        """Kept: an identity must not come back."""

    def of(self, brain: RobotCore) -> Seen:
        if id(brain) not in self.names:
            self.names[id(brain)] = brain.config.name
            self._brains.append(brain)
        return self.robots[id(brain)]

    @contextlib.contextmanager
    def watching(self) -> Iterator[Witness]:
        ticks, replies, follows = RobotCore.tick, RobotCore.on_reply, RobotCore.on_schedule

        def tick(brain: RobotCore, sensors: Any, now_s: float) -> Any:
            decided = ticks(brain, sensors, now_s)
            self._moves(
                brain, decided.command is not None and brain.why.by in (CommandSource.STEP, CommandSource.PARTIAL_STEP), now_s
            )
            for server, request in decided.requests:
                self._asks(brain, server, request.id, now_s)
            return decided

        def reply(brain: RobotCore, answer: Any, now_s: float) -> Any:
            taken = replies(brain, answer, now_s)
            if taken:
                self._takes(brain, answer.id, now_s)
            return taken

        def follow(brain: RobotCore, schedule: Schedule, now_s: float) -> Any:
            self.of(brain).told.append((now_s, schedule))
            return follows(brain, schedule, now_s)

        with (
            patch.object(RobotCore, "tick", tick),
            patch.object(RobotCore, "on_reply", reply),
            patch.object(RobotCore, "on_schedule", follow),
        ):
            yield self

    # --- rules ---

    def _asks(self, brain: RobotCore, server: str, request: RequestId, now_s: float) -> None:
        """One in flight: another one only in another session, or when its time is up."""
        seen = self.of(brain)
        if waits := seen.asked.get(request.component):
            asked, former, sent_s = waits
            same = (asked, former.session_epoch) == (server, request.session_epoch)
            patience_s = brain.config.link.request_timeout_s
            assert not same or now_s - sent_s >= patience_s * (1 - 1e-9), (
                f"two in flight: {former}, {request} after {now_s - sent_s}"
            )
            seen.answers.append((request.component, sent_s, math.inf))
        seen.asked[request.component] = (server, request, now_s)

    def _takes(self, brain: RobotCore, answered: RequestId, now_s: float) -> None:
        seen = self.of(brain)
        _, asked, sent_s = seen.asked.pop(answered.component)
        assert answered == asked, f"{answered} does not answer {asked}"
        seen.answers.append((answered.component, sent_s, now_s - sent_s))
        if answered.component == SYSTEM1:
            seen.observed_s, seen.taken, seen.fresh = sent_s, answered, True

    def _moves(self, brain: RobotCore, commanded: bool, now_s: float) -> None:
        if not commanded:
            return
        seen, config = self.of(brain), brain.config
        assert brain.state not in STANDS and brain.task is not None, f"{config.name} moves in {brain.state!r}"
        assert now_s - seen.observed_s <= config.max_action_age_s, f"{config.name} executes what it saw at {seen.observed_s}"
        origin = brain.why.origin
        assert origin and origin.id == seen.taken, f"{config.name} executes {origin}, the newest chunk is {seen.taken}"
        if seen.fresh:
            seen.fresh = False
            seen.chunks_s.append(now_s)
