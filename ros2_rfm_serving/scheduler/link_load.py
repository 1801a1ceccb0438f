"""Traffic of robots and servers on the links of hosts, and the capacity of these links (`hosts: {<name>: {bandwidth_mbit_s}}`).

Traffic is counted at the highest rates that robots may send, not at expected ones, because a full link delays everything on it.
Both directions count separately: observations go to the server's host and answers leave it, and the reverse holds at the host that
names the robots' task. Traffic within one host is on no link.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from ros2_rfm_serving.factory import Factory

MBIT_PER_KB = 8e-3
ROUNDING = 1e-6
ON = " of host "
"""Separator of a GPU type and a host whose link may limit its servers; together they are a separate GPU type for the solvers."""


class LinkDirection(NamedTuple):
    """Direction of a host's link."""

    host: str
    outward: bool = False


Load = Mapping[LinkDirection, float]
"""Traffic per way in Mbit/s."""
Asked = Mapping[str, Mapping[str, float]]
"""Server -> task -> highest number of requests/s that its robots may send."""
Lost = frozenset[str]
"""Servers that are lost together; the empty set is the present state."""


@dataclass(frozen=True, kw_only=True)
class NetworkLinkLoads:
    """Links and traffic sizes of one factory."""

    takes_mbit_s: Mapping[str, float]
    """Host -> capacity of each way that a plan may use; links of other hosts are unlimited."""
    sizes_mbit: Mapping[str, tuple[float, float]]
    """Task -> size of an observation of its robots, and of the answer."""
    homes: Mapping[str, str]
    """Task -> host that names it."""
    hosts: Mapping[str, str]
    """Server -> its host."""
    tight: frozenset[str] = frozenset()
    """Hosts whose links the solvers count."""
    share: float = 1.0
    """Share of a link's bandwidth that may be used."""

    def of_request(self, task: str, host: str) -> tuple[tuple[LinkDirection, float], ...]:
        """Return the Mbit of one request and its answer on each way. host: of the server; empty: it has no link."""
        home = self.homes.get(task, "")
        if home == host or task not in self.sizes_mbit:
            return ()
        there, back = self.sizes_mbit[task]
        ways = (
            (LinkDirection(host), there),
            (LinkDirection(host, True), back),
            (LinkDirection(home, True), there),
            (LinkDirection(home), back),
        )
        return tuple((way, mbit) for way, mbit in ways if mbit and way.host in self.takes_mbit_s)

    def counted(self, task: str, gpu_type: str) -> tuple[tuple[LinkDirection, float], ...]:
        """Return the same for a server that solvers know by its type alone, on the links that they count."""
        return tuple(part for part in self.of_request(task, gpu_type.partition(ON)[2]) if part[0].host in self.tight)

    def over(self, load: Load) -> Iterator[LinkDirection]:
        return (way for way, mbit_s in load.items() if mbit_s > self.takes_mbit_s[way.host] * (1 + ROUNDING))

    def hold(self, load: Load) -> bool:
        return next(self.over(load), None) is None

    def words(self, way: LinkDirection, mbit_s: float) -> str:
        """Return the message for an overloaded link."""
        takes = self.takes_mbit_s[way.host]
        what = f"host {way.host} may send" if way.outward else f"to host {way.host} may be sent"
        declared = f"{takes:.3g} Mbit/s ({self.share:.0%} of bandwidth_mbit_s {takes / self.share:g})"
        fix = "a faster link, smaller observations, or GPUs on other hosts"
        return f"{what} {mbit_s:.3g} Mbit/s, and its link takes {declared}: {fix}"


def links_of(factory: Factory) -> NetworkLinkLoads | None:
    """Return the links of a factory. None: no link is declared, or no traffic size is known."""
    share = factory.planning.link_share
    takes = {name: share * host.bandwidth_mbit_s for name, host in factory.hosts.items() if host.bandwidth_mbit_s}
    networks = {entry.task: entry.network for entry in reversed(factory.robot_fleet)}
    sizes = {task: (MBIT_PER_KB * n.observation_kb, MBIT_PER_KB * n.reply_kb) for task, n in networks.items()}
    sizes = {task: both for task, both in sizes.items() if any(both)}
    if not takes or not sizes:
        return None
    homes = {task: name for name, host in factory.hosts.items() for task in host.robots}
    hosts = {server: seat.host for server, seat in factory.gpu_assignments.items()}
    return NetworkLinkLoads(takes_mbit_s=takes, sizes_mbit=sizes, homes=homes, hosts=hosts, share=share)


def on_host(gpu_type: str, host: str) -> str:
    return f"{gpu_type.partition(ON)[0]}{ON}{host}"


def off_host(gpu_type: str) -> str:
    return gpu_type.partition(ON)[0]


@dataclass(frozen=True)
class LinkTraffic:
    """Traffic of servers and their standbys."""

    links: NetworkLinkLoads
    asked: Asked
    standby_of: Mapping[str, str] = field(default_factory=dict)
    gpus: Mapping[str, str] = field(default_factory=dict)
    """Server -> server whose GPU it shares, for those that share one."""

    @cached_property
    def now(self) -> Load:
        return self.load(self.asked.items())

    def after(self, lost: Lost) -> Load:
        """Return the load after a loss, when the robots of each lost server use its standby."""
        return summed(self.now, *(self.moved(name, self.standby_of.get(name, "")) for name in sorted(lost))) if lost else self.now

    def holds(self) -> bool:
        return self.links.hold(self.now)

    def called(self, names: Sequence[str]) -> LinkTraffic:
        """Return the traffic with the servers renamed, in their order."""
        return replace(self, asked=dict(zip(names, self.asked.values(), strict=False)))

    def moved(self, server: str, to: str) -> Load:
        """Return the increase on every link if all robots of a server move to another one; a decrease is negative."""
        more = defaultdict(float, self.load([(to, self.asked.get(server, {}))]))
        for way, mbit_s in self.load([(server, self.asked.get(server, {}))]).items():
            more[way] -= mbit_s
        return more

    def losses(self) -> list[tuple[str, Lost]]:
        """Return the losses that standbys cover, with a text: of every server, and of every host with more than one."""
        found = [(f"the loss of {name}", frozenset([name])) for name in self.asked if self.standby_of.get(name)]
        on: dict[str, list[str]] = defaultdict(list)
        for name in (name for name, tasks in self.asked.items() if tasks):
            on[self._host(name)].append(name)
        for host, names in on.items():
            standbys = {self.standby_of.get(name, "") for name in names}
            if host and len(names) > 1 and "" not in standbys and host not in map(self._host, standbys):
                found.append((f"the loss of host {host}", frozenset(names)))
        return found

    def load(self, asked: Iterable[tuple[str, Mapping[str, float]]]) -> dict[LinkDirection, float]:
        load: dict[LinkDirection, float] = defaultdict(float)
        for server, tasks in asked:
            host = self._host(server)
            for task, hz in tasks.items():
                for way, mbit in self.links.of_request(task, host) if server else ():
                    load[way] += mbit * hz
        return load

    def _host(self, server: str) -> str:
        return self.links.hosts.get(self.gpus.get(server) or server, "")


def summed(*loads: Load) -> Load:
    total: dict[LinkDirection, float] = defaultdict(float)
    for load in loads:
        for way, mbit_s in load.items():
            total[way] += mbit_s
    return total


@dataclass(frozen=True)
class LinkBudget:
    """Link budget: loads of the links now and after each covered loss; an admission must keep within their capacities."""

    links: NetworkLinkLoads
    standby_of: Mapping[str, str]
    losses: tuple[Lost, ...]
    """Covered losses; the first is the empty one."""
    asked: Asked
    """Requests of the present robots."""
    gpus: Mapping[str, str] = field(default_factory=dict)
    """Server -> server whose GPU it shares, as in `LinkTraffic`."""

    def at(self, asked: Asked) -> LinkBudget:
        """Return the budget with other request rates of the same robots."""
        return replace(self, asked=asked)

    def loads(self, asked: Asked) -> list[Load]:
        """Return the loads of these requests after each of the losses."""
        traffic = LinkTraffic(self.links, asked, self.standby_of, self.gpus)
        return [traffic.after(lost) for lost in self.losses]

    def most(self, fixed: Asked, each: Asked) -> float:
        """Return how many times `each` fits beside `fixed`. Below 0: not even `fixed` fits."""
        others = {name: self.standby_of.get(name, "") for name in {**fixed, **each}}
        theirs = {i for name in others for i in self._losses_of.get(name, ())}
        rooms = [float("inf")]
        for i in (None, *sorted(theirs)):  # a loss of other servers does not move any of this traffic
            lost = self.losses[i] if i is not None else frozenset[str]()
            beside, step = (
                self._now.load((others[name] if name in lost else name, tasks) for name, tasks in asked.items())
                for asked in (fixed, each)
            )
            for way in {**beside, **step}:
                load = self._there[i].get(way, 0.0) if i is not None else self._heaviest(way, theirs)
                more, slope = beside.get(way, 0.0), step.get(way, 0.0)
                if not more and not slope:
                    continue
                room = self.links.takes_mbit_s[way.host] * (1 + ROUNDING / 2) - load - more  # a full link must not count as over
                rooms.append(room / slope if slope > 0 else (float("inf") if room >= 0 else room))
        return min(rooms)

    def carries(self, server: str, standby: str) -> bool:
        """Return whether links carry all requests of a server's robots to another server."""
        return not any(grown(self.links, self._now.now, self._now.moved(server, standby)))

    # --- parts ---

    @cached_property
    def _now(self) -> LinkTraffic:
        return LinkTraffic(self.links, self.asked, gpus=self.gpus)

    @cached_property
    def _there(self) -> list[Load]:
        return self.loads(self.asked)

    @cached_property
    def _losses_of(self) -> Mapping[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for i, lost in enumerate(self.losses):
            for name in lost:
                found[name].append(i)
        return found

    @cached_property
    def _ranks(self) -> dict[LinkDirection, list[tuple[float, int]]]:
        return {}

    def _heaviest(self, way: LinkDirection, but: Collection[int]) -> float:
        """Return the highest load of a way after any loss but the given ones."""
        if way not in self._ranks:
            self._ranks[way] = sorted(((load.get(way, 0.0), i) for i, load in enumerate(self._there)), reverse=True)
        return next(mbit_s for mbit_s, i in self._ranks[way] if i not in but)


def grown(links: NetworkLinkLoads, load: Load, moved: Load) -> dict[LinkDirection, float]:
    """Return the loads that are too high, among the ways that receive more."""
    total = {way: load.get(way, 0.0) + mbit_s for way, mbit_s in moved.items() if mbit_s > 0}
    return {way: total[way] for way in links.over(total)}


def pledge_of(traffic: LinkTraffic) -> LinkBudget:
    """Return the budget of present traffic; losses that links do not carry now are not promised."""
    kept = [lost for _, lost in traffic.losses() if traffic.links.hold(traffic.after(lost))]
    return LinkBudget(traffic.links, traffic.standby_of, (frozenset(), *kept), traffic.asked, traffic.gpus)
