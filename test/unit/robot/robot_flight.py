"""One request in flight per component (Remote-RTC P5), or as many as a pipelined session's depth, by a record of its own.

The next one goes out when the last is *over*: it was answered, its time is up, or nobody wants the answer any more, as what it was
asked for is over. Time is up at its SLO where late answers have a fallback, since that asks anew; else at the request's timeout.
In a pipelined session an answer also ends what went out before its request.
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
        self._out: dict[str, list[_Out]] = {}
        """The oldest first."""
        self._sent: dict[str, list[_Out]] = {}
        """All that ever went out, whose observations answers may have ended with."""
        self._context: dict[str, int] = {}
        """Newest observation that an answer that was taken ended with."""
        self._asked_again: dict[str, Sent] = {}
        self._framed: dict[str, _Out] = {}
        """The last that began a frame."""
        self._stops, self._plans = 0, 0
        """So many so far."""
        self._seen: tuple[object, object] = ((0, ""), ())

    def __getitem__(self, component: str) -> list[Sent]:
        """The oldest first."""
        return [out.sent for out in self._out.get(component, [])]

    def depth(self, component: str) -> int:
        pipelining = self._config.pipelining
        return pipelining.depth if pipelining and component == "system1" else 1

    @property
    def context(self) -> int:
        return self._context.get("system1", 0)

    def seen(self, sent: Sent, ended_with: int | None) -> Sent | None:
        """The request whose observation an answer says that it ended with; None: that cannot be."""
        component, first = sent.request.id.component, sent.request.id.sequence
        if ended_with is None:
            ended_with = first
        if ended_with < max(first, self._context.get(component, 0)):
            return None
        session, episode = self._session(sent), sent.request.id.episode
        for out in self._sent.get(component, []):
            identity = out.sent.request.id
            if identity.sequence == ended_with and out.session is session and identity.episode == episode:
                return out.sent
        return None

    def answered(self, sent: Sent, ended_with: int | None) -> None:
        """What its answer overtakes is over, too."""
        identity = sent.request.id
        self._context[identity.component] = identity.sequence if ended_with is None else ended_with
        out = self._out.get(identity.component, [])
        self._out[identity.component] = [each for each in out if each.sent.request.id.sequence > identity.sequence]

    def look(self) -> bool:
        """True when there was a stop since, or may have been."""
        brain, stops = self._brain, self._stops
        seen = (brain.violations.total(), brain.stop_reason), brain.plan
        self._stops += seen[0] != self._seen[0]
        self._plans += seen[1] != self._seen[1]
        self._seen = seen
        return self._stops > stops

    def goes_out(self, sent: Sent) -> None:
        component, depth = sent.request.id.component, self.depth(sent.request.id.component)
        before, asked = self._out.get(component, []), self._asked_again.get(component)
        again = any(each.sent is asked for each in before)
        out = [each for each in before if not self._is_over(component, each, sent)]
        told = [f"{sent.at_s - each.sent.at_s:.3f} s old" for each in out]
        assert len(out) < depth, f"{component}: a request while others, {', '.join(told)}, are in flight"
        # What may be given up need not be, in a pipelined session: nothing takes its place.
        out = [each for each in before if each.sent is not asked] if depth > 1 else out
        new = _Out(sent, self._session(sent), self._wanted_for(component))
        if not again and depth > 1:  # else it takes the place of another one
            self._check_frame(component, new)
        self._out[component] = [*out, new]
        self._sent[component] = [*self._sent.get(component, [])[-100:], new]

    def _check_frame(self, component: str, new: _Out) -> None:
        """One request per frame of an episode."""
        last, self._framed[component] = self._framed.get(component), new
        if last is not None and last.sent.request.id.episode == new.sent.request.id.episode:
            jitter_s = (0.5 if self._config.tick_is_step else 0.05) / self._config.control_rate_hz
            frame_s = self._config.execution_horizon / self._config.step_rate_hz - jitter_s
            assert new.sent.at_s - last.sent.at_s >= frame_s - EPS, "two requests in one frame"

    def asked_again(self, sent: Sent) -> None:
        """By its server, which has not begun with it: a newer observation takes its place."""
        self._asked_again[sent.request.id.component] = sent

    def over(self, *components: str) -> None:
        """No name: all of them."""
        for component in components or list(self._out):
            self._out.pop(component, None)

    def _is_over(self, component: str, before: _Out, sent: Sent) -> bool:
        return (
            before.sent is self._asked_again.get(component)
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
