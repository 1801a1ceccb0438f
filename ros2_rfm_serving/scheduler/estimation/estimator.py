"""Evaluation of all telemetry of a running factory to the observations of plans (`FactoryEstimates`), with changes that are
certain."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

from ros2_rfm_serving.factory import Catalogue, Factory
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.scheduler.estimates import AS_DECLARED, FactoryEstimates
from ros2_rfm_serving.scheduler.estimation.calibration import CorrectionFactors
from ros2_rfm_serving.scheduler.estimation.drift import ServiceDriftEstimator, ServicePace
from ros2_rfm_serving.scheduler.estimation.health import ServerHealth
from ros2_rfm_serving.scheduler.estimation.robot_latency import DistantRobot
from ros2_rfm_serving.scheduler.estimation.slo_attainment import SloAttainment
from ros2_rfm_serving.scheduler.estimation.status_samples import RobotStatusSample, ServerStatusSample
from ros2_rfm_serving.scheduler.estimation.tail_estimator import TailEstimator
from ros2_rfm_serving.types import Schedule

K = TypeVar("K", bound=Hashable)
SETTLE_S = 5.0
"""Seconds between two evaluations of figures: changes within it are one change."""


class EstimateChange(NamedTuple):
    """Change of the observations."""

    seen: FactoryEstimates
    lost: tuple[str, ...]
    back: tuple[str, ...]
    words: str


class FactoryEstimator:
    """Telemetry of one factory. Times are seconds of one monotonic clock; one that is set back only loses pending measurements."""

    def __init__(self, factory: Factory, profile: Profile, catalogue: Catalogue | None, *, lost: tuple[str, ...] = ()) -> None:
        """lost: servers that are lost at the start, until they are received for long enough."""
        self.seen = replace(AS_DECLARED, lost=lost)
        self._profile, self._catalogue = profile, catalogue
        self.insane = 0
        """Reports with invalid figures."""
        self.strangers = 0
        """Reports of robots that the schedule does not serve."""
        self.health, self.factors, self.attained, self.straggling = (
            ServerHealth(),
            CorrectionFactors(),
            SloAttainment(),
            TailEstimator(),
        )
        self.missed: tuple[str, ...] = ()
        """Texts on promises that are surely broken by the robots' own counts."""
        self.far: tuple[DistantRobot, ...] = ()
        """Robots whose own network is worse than planned, the worst first."""
        self._factory: Factory | None = None
        self._schedule: Schedule | None = None
        self._robots: frozenset[str] = frozenset()
        """Robots of the schedule; nothing is stored for others, whatever their number."""
        self._looked_s = -math.inf
        self.declare(factory)
        self.health.lose(lost)

    def declare(self, factory: Factory) -> None:
        """Follow another descriptor; measurements of servers with the same name stay."""
        if factory is self._factory:
            return
        self._factory, self._schedule = factory, None
        self.drift = ServiceDriftEstimator(self._profile.batched(factory.continuous), factory.planning.stragglers)
        self.straggling.declare(factory.servers)
        self.drift.straggle(self.straggling.used)
        self.health.declare(factory.servers)
        self.factors.declare(factory)
        self.attained.declare(factory)

    def follow(self, schedule: Schedule) -> None:
        """Follow the active schedule."""
        if schedule is self._schedule:
            return
        self._schedule = schedule
        placements = {p.server: p for p in schedule.placements if not p.gpu}
        asked = frozenset(route.server for route in schedule.routes)
        self.straggling.place(placements, self.drift.place(placements, asked))
        robots = self._robots = frozenset(route.robot for route in schedule.routes)
        self.factors.keep(robots)
        self.attained.follow(robots)
        for server in self._servers:
            placement = placements.get(server)
            footprint = self._catalogue.footprint(placement.model, placement.gpu_type) if placement and self._catalogue else None
            self.health.place(server, placement, footprint.load_s if footprint else 0.0, schedule.epoch)

    def hear_server(self, word: ServerStatusSample, now_s: float) -> None:
        if not word.is_sane:
            self.insane += 1
            return
        self.health.hear(word)
        self.drift.hear(word, now_s)
        self.straggling.hear(word, now_s)

    def hear_robot(self, word: RobotStatusSample, now_s: float) -> None:
        if not word.is_sane:
            self.insane += 1
            return
        if word.robot not in self._robots:
            self.strangers += 1
            return
        self.factors.hear(word, *self.drift.latencies_s(word.server), now_s)
        self.attained.hear(word, now_s)

    def look(self, now_s: float, *, short: bool = False) -> EstimateChange | None:
        """Evaluate the telemetry. None: no change is relevant to plans. short: robots are stopped for want of a server."""
        lost, back = self.health.look(now_s, short=short)
        if not lost and not back and 0.0 <= now_s - self._looked_s < SETTLE_S:
            return None
        self._looked_s = now_s
        assert self._factory is not None
        self.missed = tuple(self.attained.missed())
        factory = self._factory
        straggles = self.straggling.look(self.drift.usual(), factory.gpu_types, factory.planning.stragglers, now_s)
        self.drift.straggle(self.straggling.used)
        drifted = self.drift.look(now_s)
        if drifted or straggles:
            self.factors.forget_tails()
        needs = self.factors.look(now_s)
        self.far = self.factors.far(now_s)
        if not (lost or back or straggles or drifted or needs):
            return None
        before, self.seen = self.seen, self._seen()
        if self.seen == before:
            return None
        self.attained.forget()
        return EstimateChange(self.seen, lost, back, _words(before, self.seen, lost, back))

    def told(self) -> Mapping[str, ServicePace]:
        """Return server -> its measured pace."""
        return self.drift.told()

    @property
    def _servers(self) -> list[str]:
        assert self._factory is not None
        return self._factory.servers

    def _seen(self) -> FactoryEstimates:
        assert self._factory is not None
        paces, models = self.drift.paces()
        return FactoryEstimates(
            lost=self.health.lost,
            paces=paces,
            models=models,
            travels=self.factors.travels(self._factory),
            cycles_s=self.factors.cycles_s(self._factory),
            calls=self.factors.calls(self._factory),
            stragglers=dict(self.straggling.used),
        )


def _words(before: FactoryEstimates, seen: FactoryEstimates, lost: tuple[str, ...], back: tuple[str, ...]) -> str:
    """Return the text of a finding, for the log and the reason of a schedule."""
    words = [f"{server} is lost" for server in lost] + [f"{server} is back" for server in back]
    words += [f"{server} takes {pace:.2f} times its profile" for server, pace in _changed(before.paces, seen.paces, 1.0)]
    words += [f"{m!r} on {g} takes {pace:.2f} times its profile" for (m, g), pace in _changed(before.models, seen.models, 1.0)]
    late: dict[str, list[str]] = {}
    for server, some in seen.stragglers.items():
        if some != before.stragglers.get(server):
            late.setdefault(f"{100 * some.share:.2g} % of services take {some.factor:g} times as long", []).append(server)
    words += [f"{', '.join(sorted(servers))}: {what}" for what, servers in late.items()]
    for task, travel in seen.travels.items():
        if before.travels.get(task) != travel:
            mean_ms, tail_ms = 1e3 * travel.mean_s, 1e3 * travel.tail_s
            words.append(f"{task!r}: {mean_ms:.0f} ms on the way to servers and back ({tail_ms:.0f} at the tail)")
    words += [f"{task!r}: {1e3 * s:.0f} ms of a chunk are executed" for task, s in _changed(before.cycles_s, seen.cycles_s)]
    for task, calls in seen.calls.items():
        pairs = _changed(before.calls.get(task, {}), calls)
        words += [f"{task!r}: {ratio:.3g} calls of {component} per action" for component, ratio in pairs]
    return "; ".join(words) or "a figure is as declared again"


def _changed(before: Mapping[K, float], after: Mapping[K, float], usual: float = math.nan) -> list[tuple[K, float]]:
    """Return the changed values. usual: default of keys that are missing; NaN: they are left out."""
    pairs = [(key, before.get(key, usual), after.get(key, usual)) for key in {**before, **after}]
    return [(key, new) for key, old, new in pairs if new != old and not math.isnan(new)]
