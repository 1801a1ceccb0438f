"""What was seen of a running factory, where it is not as its descriptor and its profiles say: a plan is made of all three.

Everything in it is bounded and comparable: equal knowledge gives the same plan, so that a replay needs nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.factory.cluster import Stragglers
from ros2_rfm_serving.factory.fleet import FleetEntry, Network
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.scheduler.links import off_host

LEAST_PACE, MOST_PACE = 0.25, 4.0
"""A server is never believed to be further from its profile than that: more is a fault, not a pace."""
AWAY = " away by "
"""Between a GPU type and how much later its answers come than from the nearest host: a GPU type of its own, for the solvers."""
OWN = " at pace "
"""Between a GPU type and how many times longer one GPU of it takes: a GPU type of its own, for the solvers."""
LATE = " straggling "
"""Between a GPU type and which of its services take longer than others: a GPU type of its own, for the solvers."""


@dataclass(frozen=True, kw_only=True)
class Travel:
    """Of a request and its reply, without what the server takes, s."""

    mean_s: float = 0.0
    tail_s: float = 0.0
    """At the 99th percentile."""

    @property
    def network(self) -> Network:
        """With that mean and that tail; where the tail is longer than jitter alone makes of such a mean, with a longer mean: a way
        that is bad now and then breaks SLOs, whatever it is on average."""
        jitter = Network(jitter_ms=1.0)
        jitter_ms = max(self.tail_s - self.mean_s, 0.0) / (jitter.at_s(99.0) - jitter.mean_s)
        if jitter_ms > 1e3 * self.mean_s:
            return Network(jitter_ms=self.tail_s / jitter.at_s(99.0))
        return Network(round_trip_ms=1e3 * self.mean_s - jitter_ms, jitter_ms=jitter_ms)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """Nothing: all is as declared."""

    lost: tuple[str, ...] = ()
    """Servers that are not to be planned with."""
    paces: Mapping[str, float] = field(default_factory=dict)
    """Server -> how many times longer it takes than others of its type, whatever it hosts."""
    models: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(model, GPU type) -> how many times longer it takes than its profile says, wherever it runs."""
    travels: Mapping[str, Travel] = field(default_factory=dict)
    """By task, without what is known of servers' hosts (`Factory.without_away`)."""
    cycles_s: Mapping[str, float] = field(default_factory=dict)
    """Task -> execution time of what is executed of one chunk, where a horizon policy decides."""
    calls: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Task -> component -> calls per action."""
    stragglers: Mapping[str, Stragglers] = field(default_factory=dict)
    """Server -> which of its services take longer than others, in place of what is declared."""
    away_s: Mapping[str, float] = field(default_factory=dict)
    """Server -> how much farther it is than the nearest, where a plan tells them apart; of the descriptor, and not seen at all."""

    def gpu_type(self, server: str, declared: str) -> str:
        """For the solvers: equal GPUs at equal paces are of one type."""
        pace, away_s = self.paces.get(server, 1.0), self.away_s.get(server, 0.0)
        there = f"{declared}{AWAY}{1e3 * away_s:.3g} ms" if away_s else declared
        at_pace = there if pace == 1.0 else f"{there}{OWN}{pace:.2f}"
        late = self.stragglers.get(server)
        return f"{at_pace}{LATE}{late.share:g} x {late.factor:g}" if late else at_pace

    def away_of(self, declared: Mapping[str, str]) -> dict[str, float]:
        """GPU type, as solvers have it -> what is added to its answers."""
        return {self.gpu_type(server, gpu): self.away_s[server] for server, gpu in declared.items() if server in self.away_s}

    def stragglers_of(self, declared: Mapping[str, str], usual: Stragglers | None) -> dict[str, Stragglers]:
        """GPU type, as solvers have it -> which services take longer there. usual: as declared, of all."""
        each = {self.gpu_type(server, gpu): self.stragglers.get(server, usual) for server, gpu in declared.items()}
        of_others = dict.fromkeys(declared.values(), usual)
        return {gpu_type: some for gpu_type, some in {**of_others, **each}.items() if some}

    def types(self, declared: Mapping[str, str]) -> dict[str, str]:
        """Server -> GPU type, of those that live."""
        return {server: self.gpu_type(server, gpu) for server, gpu in declared.items() if server not in self.lost}

    def factory(self, reckoned: Factory, without_away: Factory) -> Factory:
        """With networks as they were measured. reckoned: as declared, to whichever hosts; these are as much farther or nearer."""
        before = {entry.task: entry.network.round_trip_ms for entry in without_away.robot_fleet}

        def seen(entry: FleetEntry) -> FleetEntry:
            network, more_ms = self.travels[entry.task].network, entry.network.round_trip_ms - before[entry.task]
            measured = network.model_copy(update={"round_trip_ms": max(network.round_trip_ms + more_ms, 0.0)})
            return entry.model_copy(update={"network": measured})

        fleet = tuple(seen(entry) if entry.task in self.travels else entry for entry in reckoned.robot_fleet)
        return reckoned.model_copy(update={"robot_fleet": fleet}) if self.travels else reckoned

    def profile(self, profile: Profile, declared: Mapping[str, str]) -> Profile:
        """Recalibrated, and with the curves of GPUs that have a pace of their own."""
        own = {(gpu, self.gpu_type(server, gpu)): self.paces.get(server, 1.0) for server, gpu in declared.items()}
        of_their_own = {names: pace for names, pace in own.items() if names[0] != names[1]}
        return profile.rescaled(self.models).paced(of_their_own, self.away_of(declared))


AS_DECLARED = Seen()


def to_json(seen: Seen) -> dict[str, Any]:
    """Without what is as declared."""
    travels = {task: [travel.mean_s, travel.tail_s] for task, travel in seen.travels.items()}
    calls = {task: dict(ratios) for task, ratios in seen.calls.items()}
    models = [[*model, pace] for model, pace in seen.models.items()]
    paces, cycles_s = dict(seen.paces), dict(seen.cycles_s)
    late = {server: [some.share, some.factor] for server, some in seen.stragglers.items()}
    of_servers = {"lost": list(seen.lost), "paces": paces, "models": models, "stragglers": late}
    whole = {**of_servers, "travels": travels, "cycles_s": cycles_s, "calls": calls}
    return {name: value for name, value in whole.items() if value}


def from_json(said: Mapping[str, Any]) -> Seen:
    late = said.get("stragglers", {}).items()
    return Seen(
        lost=tuple(said.get("lost", ())),
        paces=said.get("paces", {}),
        models={(model, gpu_type): pace for model, gpu_type, pace in said.get("models", ())},
        travels={task: Travel(mean_s=mean_s, tail_s=tail_s) for task, (mean_s, tail_s) in said.get("travels", {}).items()},
        cycles_s=said.get("cycles_s", {}),
        calls=said.get("calls", {}),
        stragglers={server: Stragglers(share=share, factor=factor) for server, (share, factor) in late},
    )


def declared_type(gpu_type: str) -> str:
    """Of one that a server may have for itself."""
    return off_host(gpu_type).partition(LATE)[0].partition(OWN)[0].partition(AWAY)[0]
