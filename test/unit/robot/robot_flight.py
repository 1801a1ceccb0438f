"""One request in flight per component (Remote-RTC P5), by a record of its own.

The next one goes out when the last is *over*: it was answered, its time is up, or nobody wants the answer any more, as what it was
asked for is over. Time is up at its SLO where late answers have a fallback, since that asks anew; else at the request's timeout.
"""

from __future__ import annotations

from typing import NamedTuple

from ros2_rfm_serving.types import SAFETY, Fallback
from test.unit.robot.robot_world import Sent, Session, World

EPS = 1e-5
STOPPED, PLANNED = ("system1", "system2"), ("system2", "monitor")
"""Asked anew by a stop, and by another plan: what they were asked is about the time before it."""


class _Out(NamedTuple):
    sent: Sent
    session: Session
    wanted_for: object


class Flight:
    """`over` is told what nobody waits for any more; what follows from time, sessions, plans and stops it sees by itself, if it may
    `look` after everything that happens."""

    def __init__(self, world: World) -> None:
        self._world, self._brain, self._config = world, world.brain, world.config
        self._out: dict[str, _Out] = {}
        self._asked_again: set[Sent] = set()
        self._stops, self._plans = 0, 0
        """So many so far."""
        self._seen: tuple[object, object] = ((0, ""), ())

    def __getitem__(self, component: str) -> Sent | None:
        out = self._out.get(component)
        return out.sent if out else None

    def look(self) -> bool:
        """True when there was a stop since, or may have been."""
        brain, stops = self._brain, self._stops
        seen = (brain.violations.total(), brain.stop_reason), brain.plan
        self._stops += seen[0] != self._seen[0]
        self._plans += seen[1] != self._seen[1]
        self._seen = seen
        return self._stops > stops

    def goes_out(self, sent: Sent) -> None:
        component = sent.request.id.component
        if before := self._out.get(component):
            told = f"{component}: a request while another, {sent.at_s - before.sent.at_s:.3f} s old, is in flight"
            assert self._is_over(component, before, sent), told
        self._out[component] = _Out(sent, self._session(sent), self._wanted_for(component))

    def asked_again(self, sent: Sent) -> None:
        """By its server, which has not begun with it: a newer observation takes its place."""
        self._asked_again.add(sent)

    def over(self, *components: str) -> None:
        """No name: all of them."""
        for component in components or list(self._out):
            self._out.pop(component, None)

    def _is_over(self, component: str, before: _Out, sent: Sent) -> bool:
        return (
            before.sent in self._asked_again
            or sent.at_s >= before.sent.at_s + self._patience_s(component) - EPS
            or before.session is not self._session(sent)
            or before.sent.request.id.episode != sent.request.id.episode
            or before.wanted_for != self._wanted_for(component)
        )

    def _patience_s(self, component: str) -> float:
        slo_s, fallback = self._world.routes[component][1], self._config.policy.fallbacks.get(component)
        asks_anew = fallback is not None and (fallback is not Fallback.USE_LAST_PLAN or component == SAFETY)
        return slo_s if slo_s and asks_anew else max(self._config.link.request_timeout_s, 2.0 * slo_s)

    def _session(self, sent: Sent) -> Session:
        return self._world.granted[sent.server, sent.request.id.component, sent.request.id.session_epoch]

    def _wanted_for(self, component: str) -> object:
        """What the answer is about: when that changes, it is not wanted any more."""
        return self._stops if component in STOPPED else 0, self._plans if component in PLANNED else 0
