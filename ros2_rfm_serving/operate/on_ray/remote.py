"""Local view of a node that Ray keeps."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError

from ros2_rfm_serving.operate.on_ray.actor import Look
from ros2_rfm_serving.operate.supervisor import HEALTHY_AFTER_S, Kept, how
from ros2_rfm_serving.private_files import private
from ros2_rfm_serving.ros.node.process import EXIT_CONFIGURATION

SILENT_S = 10.0
"""Time without an answer after which that is reported."""


@dataclass(kw_only=True)
class Remote(Kept):
    """Node whose actor is polled."""

    actor: Any
    asked: Any = None
    heard_s: float = field(default_factory=time.monotonic)
    last: Look | None = None
    """Newest answer of the actor."""
    num_lives: int = 0
    predecessors_until_s: float = 0.0
    """Time until which an invalid configuration is no failure: processes of an earlier cluster may be the cause."""
    ending_of: str = ""
    """Life of the actor whose end was reported."""
    is_silent: bool = False
    """Silence of the actor was reported."""

    def ask(self) -> Any:
        """Request the state, unless a request is pending."""
        if self.asked is None:
            self.asked = self.actor.look.remote(*self._heard())
        return self.asked

    def watch(self) -> list[str]:
        """Return messages about events; called after `ask`."""
        if self.gave_up or self.asked is None:
            return []
        if not ray.wait([self.asked], timeout=0)[0]:
            return self._waiting()
        try:
            look = ray.get(self.asked)
        except ActorDiedError as error:  # permanently
            self.gave_up = True
            return [f"{self.node.name}: Ray cannot keep it, given up: {_cause(error)}"]
        except ActorUnavailableError:  # Ray restarts it already
            return self._waiting()
        except RayError as error:
            return self._said_once(f"cannot be asked how it does: {_cause(error)}")
        finally:
            self.asked = None
        return self._answered(look)

    def begin_end(self) -> Any:
        """Ask the actor to end its process, and return the pending answer; None: there is no actor to ask."""
        return None if self.gave_up or self.is_silent or not self.last else self.actor.end.remote(*self._heard())

    def end(self, ending: Any, deadline_s: float) -> bool:
        """Wait for the answer of `begin_end`; return whether the process ended in order.
        The actor is left, with whatever did not end."""
        in_order = ending is None
        try:
            if ending is not None:
                killed, look = ray.get(ending, timeout=max(0.1, deadline_s - time.monotonic()))
                self._write(look)
                in_order = not killed
        except RayError as error:
            self._write_line(_cause(error))
        return in_order

    def _heard(self) -> tuple[str, int]:
        return (self.last.life, self.last.read) if self.last else ("", 0)

    def _waiting(self) -> list[str]:
        if time.monotonic() - self.heard_s < SILENT_S:
            return []
        what = "nothing is heard of it" if self.last else "waits for a node with room for it"
        return self._said_once(f"{what}; Ray starts it as soon as it can (`ray status`)")

    def _said_once(self, what: str) -> list[str]:
        """Return a message once, until the actor answers again."""
        was, self.is_silent = self.is_silent, True
        return [] if was else [f"{self.node.name}: {what}"]

    def _answered(self, look: Look) -> list[str]:
        before, events = self.last, list[str]()
        self._write(look)
        self.last, self.heard_s, self.is_silent = look, time.monotonic(), False
        self.num_lives += before is None or before.life != look.life
        if before is None:
            events.append(f"{self.node.name}: started on {look.machine}, process {look.pid}")
        elif before.life != look.life:
            if self.ending_of != before.life:  # its owner ended as well, so the reason is unknown
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
        ran_before = self.num_lives > 1 and look.code == EXIT_CONFIGURATION  # the cause is another process, such as its predecessor
        if ran_before and time.monotonic() < self.predecessors_until_s:
            ray.kill(self.actor, no_restart=False)
            return f"{self.node.name}: whom it follows is there still, Ray starts it again; see {self.log}"
        if given_up := self.ended(1 if ran_before else look.code):
            ray.kill(self.actor, no_restart=True)
            return given_up
        if ran_before:
            ray.kill(self.actor, no_restart=False)
        return f"{self.node.name}: ended ({how(look.code)}), Ray starts it again; see {self.log}"

    def _write(self, look: Look) -> None:
        self._write_line(look.log, end="")

    def _write_line(self, text: str, end: str = "\n") -> None:
        """Append to the log; text that finds no space here is in Ray's own log."""
        with suppress(OSError), open(self.log, "a", encoding="utf-8", opener=private) as log:
            log.write(text + end)


def _cause(error: RayError) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
