"""A node that Ray keeps, as it looks from here."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError

from ros2_rfm_serving.operate.on_ray.actor import Look
from ros2_rfm_serving.operate.supervisor import HEALTHY_AFTER_S, STOP_TIMEOUT_S, Kept, how

SILENT_S = 10.0
"""Beyond which it is said that nothing is heard of it."""
END_S = STOP_TIMEOUT_S + 10.0
"""For all that `NodeActor.end` may take."""


@dataclass(kw_only=True)
class Remote(Kept):
    """Asked how it does whenever it has answered."""

    actor: Any
    asked: Any = None
    asked_s: float = 0.0
    last: Look | None = None
    """Its newest answer."""
    ending_of: str = ""
    """The life whose end has been told."""
    is_silent: bool = False

    def watch(self) -> list[str]:
        """What happened, in words."""
        if self.gave_up:
            return []
        if self.asked is None:
            self._ask()
        if not ray.wait([self.asked], timeout=0)[0]:
            return self._waiting()
        try:
            look = ray.get(self.asked)
        except ActorDiedError as error:  # for good
            self.gave_up = True
            return [f"{self.node.name}: Ray cannot keep it, given up: {_cause(error)}"]
        except RayError:  # Ray is about it already
            self._ask()
            return []
        events = [*self._answered(look)]
        self._ask()
        return events

    def begin_end(self) -> Any:
        return self.actor.end.remote(*self._heard())

    def end(self, ending: Any, deadline_s: float) -> bool:
        """After `begin_end`: whether it ended in order. Nothing is left of it in either case."""
        in_order = False
        try:
            killed, look = ray.get(ending, timeout=max(0.1, deadline_s - time.monotonic()))
            self._write(look)
            in_order = not killed
        except RayError:
            in_order = self.last is None or self.gave_up  # nothing was there to end
        ray.kill(self.actor, no_restart=True)
        return in_order

    def _heard(self) -> tuple[str, int]:
        return (self.last.life, self.last.read) if self.last else ("", 0)

    def _ask(self) -> None:
        self.asked, self.asked_s = self.actor.look.remote(*self._heard()), time.monotonic()

    def _waiting(self) -> list[str]:
        if self.is_silent or time.monotonic() - self.asked_s < SILENT_S:
            return []
        self.is_silent = True
        what = "nothing is heard of it; Ray starts it" if self.last else "waits for a node with room for it; Ray starts it"
        return [f"{self.node.name}: {what} as soon as it can (`ray status`)"]

    def _answered(self, look: Look) -> list[str]:
        before, events = self.last, list[str]()
        self._write(look)
        self.last, self.is_silent = look, False
        if before is None:
            events.append(f"{self.node.name}: started on {look.machine}, process {look.pid}")
        elif before.life != look.life:
            if self.ending_of != before.life:  # its owner went with it: nobody could say how
                self.failures = 0
            events.append(f"{self.node.name}: started again on {look.machine}, process {look.pid}")
        if look.code is None and look.age_s > HEALTHY_AFTER_S:
            self.failures = 0
        if look.code is not None and self.ending_of != look.life:
            events.append(self._ended(look))
        return events

    def _ended(self, look: Look) -> str:
        assert look.code is not None
        self.ending_of = look.life
        if given_up := self.ended(look.code):
            ray.kill(self.actor, no_restart=True)
            return given_up
        return f"{self.node.name}: ended ({how(look.code)}), Ray starts it again; see {self.log}"

    def _write(self, look: Look) -> None:
        with self.log.open("a", encoding="utf-8") as log:
            log.write(look.log)


def _cause(error: ActorDiedError) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
