"""Observations of a running factory where it differs from its descriptor and its profiles: a plan is made of all three.

All values are bounded and comparable: equal observations give the same plan, so that a replay needs nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.factory.cluster import StragglerConfig
from ros2_rfm_serving.factory.fleet import FleetEntry, NetworkEntry
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.scheduler.link_load import off_host

LEAST_PACE, MOST_PACE = 0.25, 4.0
"""Limits of a server's pace relative to its profile: a value beyond is a fault, not a pace."""
AWAY = " away by "
"""Separator of a GPU type and its delay beyond the nearest host; together they are a separate GPU type for the solvers."""
OWN = " at pace "
"""Separator of a GPU type and the relative service time of one GPU of it; together they are a separate GPU type for the solvers."""
LATE = " straggling "
"""Separator of a GPU type and its straggling services; together they are a separate GPU type for the solvers."""


@dataclass(frozen=True, kw_only=True)
class NetworkDelay:
    """Network time of a request and its reply, without server time, in s."""

    mean_s: float = 0.0
    tail_s: float = 0.0
    """Value at the 99th percentile."""

    @property
    def network(self) -> NetworkEntry:
        """Return a network with that mean and that tail. Where the tail is longer than jitter alone gives for such a mean, the mean
        is longer: a network that is bad now and then breaks SLOs whatever its mean is."""
        jitter = NetworkEntry(jitter_ms=1.0)
        jitter_ms = max(self.tail_s - self.mean_s, 0.0) / (jitter.at_s(99.0) - jitter.mean_s)
        if jitter_ms > 1e3 * self.mean_s:
            return NetworkEntry(jitter_ms=self.tail_s / jitter.at_s(99.0))
        return NetworkEntry(round_trip_ms=1e3 * self.mean_s - jitter_ms, jitter_ms=jitter_ms)


@dataclass(frozen=True, kw_only=True)
class FactoryEstimates:
    """Observations; without values all is as declared."""

    lost: tuple[str, ...] = ()
    """Servers that plans must not use."""
    paces: Mapping[str, float] = field(default_factory=dict)
    """Server -> service time relative to others of its type, whatever model it hosts."""
    models: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(model, GPU type) -> service time relative to its profile, wherever it runs."""
    travels: Mapping[str, NetworkDelay] = field(default_factory=dict)
    """Task -> network, without known distances of servers' hosts (`Factory.without_away`)."""
    cycles_s: Mapping[str, float] = field(default_factory=dict)
    """Task -> execution time of the executed part of one chunk, where a horizon policy decides."""
    calls: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Task -> component -> calls per action."""
    stragglers: Mapping[str, StragglerConfig] = field(default_factory=dict)
    """Server -> its straggling services, in place of the declared ones."""
    away_s: Mapping[str, float] = field(default_factory=dict)
    """Server -> delay beyond the nearest host, where a plan distinguishes them; it is from the descriptor and not observed."""

    def gpu_type(self, server: str, declared: str) -> str:
        """Return the GPU type for the solvers: equal GPUs at equal paces have one type."""
        pace, away_s = self.paces.get(server, 1.0), self.away_s.get(server, 0.0)
        there = f"{declared}{AWAY}{1e3 * away_s:.3g} ms" if away_s else declared
        at_pace = there if pace == 1.0 else f"{there}{OWN}{pace:.2f}"
        late = self.stragglers.get(server)
        return f"{at_pace}{LATE}{late.share:g} x {late.factor:g}" if late else at_pace

    def away_of(self, declared: Mapping[str, str]) -> dict[str, float]:
        """Return GPU type, as solvers have it -> delay that is added to its answers."""
        return {self.gpu_type(server, gpu): self.away_s[server] for server, gpu in declared.items() if server in self.away_s}

    def stragglers_of(self, declared: Mapping[str, str], usual: StragglerConfig | None) -> dict[str, StragglerConfig]:
        """Return GPU type, as solvers have it -> its straggling services. usual: the declared ones of all types."""
        each = {self.gpu_type(server, gpu): self.stragglers.get(server, usual) for server, gpu in declared.items()}
        of_others = dict.fromkeys(declared.values(), usual)
        return {gpu_type: some for gpu_type, some in {**of_others, **each}.items() if some}

    def types(self, declared: Mapping[str, str]) -> dict[str, str]:
        """Return server -> GPU type, for living servers."""
        return {server: self.gpu_type(server, gpu) for server, gpu in declared.items() if server not in self.lost}

    def factory(self, reckoned: Factory, without_away: Factory) -> Factory:
        """Return the factory with measured networks. reckoned: factory with certain host distances, which are added to them."""
        before = {entry.task: entry.network.round_trip_ms for entry in without_away.robot_fleet}

        def seen(entry: FleetEntry) -> FleetEntry:
            network, more_ms = self.travels[entry.task].network, entry.network.round_trip_ms - before[entry.task]
            measured = network.model_copy(update={"round_trip_ms": max(network.round_trip_ms + more_ms, 0.0)})
            return entry.model_copy(update={"network": measured})

        fleet = tuple(seen(entry) if entry.task in self.travels else entry for entry in reckoned.robot_fleet)
        return reckoned.model_copy(update={"robot_fleet": fleet}) if self.travels else reckoned

    def profile(self, profile: Profile, declared: Mapping[str, str]) -> Profile:
        """Return the recalibrated profile, with the curves of GPUs that have a pace of their own."""
        own = {(gpu, self.gpu_type(server, gpu)): self.paces.get(server, 1.0) for server, gpu in declared.items()}
        of_their_own = {names: pace for names, pace in own.items() if names[0] != names[1]}
        return profile.rescaled(self.models).paced(of_their_own, self.away_of(declared))


AS_DECLARED = FactoryEstimates()


def to_json(seen: FactoryEstimates) -> dict[str, Any]:
    """Return the values that differ from the declared ones."""
    travels = {task: [travel.mean_s, travel.tail_s] for task, travel in seen.travels.items()}
    calls = {task: dict(ratios) for task, ratios in seen.calls.items()}
    models = [[*model, pace] for model, pace in seen.models.items()]
    paces, cycles_s = dict(seen.paces), dict(seen.cycles_s)
    late = {server: [some.share, some.factor] for server, some in seen.stragglers.items()}
    of_servers = {"lost_servers": list(seen.lost), "server_time_ratios": paces, "model_time_ratios": models, "stragglers": late}
    whole = {**of_servers, "network_s": travels, "execution_s": cycles_s, "calls_per_action": calls}
    return {name: value for name, value in whole.items() if value}


def from_json(said: Mapping[str, Any]) -> FactoryEstimates:
    late = said.get("stragglers", {}).items()
    return FactoryEstimates(
        lost=tuple(said.get("lost_servers", ())),
        paces=said.get("server_time_ratios", {}),
        models={(model, gpu_type): pace for model, gpu_type, pace in said.get("model_time_ratios", ())},
        travels={task: NetworkDelay(mean_s=mean_s, tail_s=tail_s) for task, (mean_s, tail_s) in said.get("network_s", {}).items()},
        cycles_s=said.get("execution_s", {}),
        calls=said.get("calls_per_action", {}),
        stragglers={server: StragglerConfig(share=share, factor=factor) for server, (share, factor) in late},
    )


def declared_type(gpu_type: str) -> str:
    """Return the declared GPU type of one that is specific to a server."""
    return off_host(gpu_type).partition(LATE)[0].partition(OWN)[0].partition(AWAY)[0]
