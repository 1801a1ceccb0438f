"""Traffic of a plan's robots on the links of hosts: totals, comparison with capacities, and messages (see `link_load`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from ros2_rfm_serving.scheduler.link_load import Asked, LinkDirection, LinkTraffic, NetworkLinkLoads
from ros2_rfm_serving.scheduler.problem import PlanningProblem
from ros2_rfm_serving.scheduler.solution import LinkUse, ServerSolution, Solution
from ros2_rfm_serving.types import Route

ROUNDS = 2
"""Rounds in which overloaded links of the plan before are added to the solvers' constraints; in the last one all links are."""


def traffic_of(problem: PlanningProblem, servers: Iterable[ServerSolution], standby_of: Mapping[str, str]) -> LinkTraffic:
    """Return the traffic of a solution to a problem with links."""
    assert problem.links
    most_hz, asked = problem.most_hz(), dict[str, dict[str, float]]()
    servers = list(servers)
    for server in servers:
        mine = asked.setdefault(server.server, defaultdict(float))
        for stream in server.streams:
            mine[stream.task] += stream.num_robots * min(stream.cap_hz, most_hz[stream.task, stream.component])
    return LinkTraffic(problem.links, asked, standby_of, {server.server: server.gpu for server in servers if server.gpu})


def asked_by(problem: PlanningProblem, routes: Iterable[Route], task_of: Mapping[str, str]) -> Asked:
    """Return the requests of a schedule's robots."""
    most_hz, asked = problem.most_hz(), defaultdict[str, dict[str, float]](lambda: defaultdict(float))
    for route in routes:
        task = task_of[route.robot]
        asked[route.server][task] += min(route.max_rate_hz, most_hz[task, route.component])
    return asked


def within_links(
    problem: PlanningProblem, solution: Solution, anew: Callable[[PlanningProblem], Solution], *, searched: bool
) -> Solution:
    """Return a plan whose traffic every link carries.

    It is the first one if that already holds. Otherwise overloaded links become constraints of the solvers; a policy that does not
    consider links (not `searched`) is only checked.
    """
    tight, first = problem, tuple[str, ...]()
    for attempt in range(1 + ROUNDS):
        if not solution.servers:
            return replace(solution, problems=(*first, *solution.problems))
        traffic = traffic_of(problem, solution.servers, {})
        over = list(_too_much(traffic))
        if not over:
            return solution
        if not searched or attempt == ROUNDS:
            break
        first = first or tuple(over)
        last = attempt == ROUNDS - 1
        assert problem.links
        tight = tight.tightened(problem.links.takes_mbit_s if last else {way.host for way in _ways_over(traffic)})
        found = anew(tight)
        solution = replace(found, work=solution.work + found.work)
    return replace(solution, feasible=False, problems=(*solution.problems, *over), servers=() if searched else solution.servers)


def _ways_over(traffic: LinkTraffic) -> Iterator[LinkDirection]:
    return traffic.links.over(traffic.now)


def _too_much(traffic: LinkTraffic) -> Iterator[str]:
    load = traffic.now
    return (traffic.links.words(way, load[way]) for way in traffic.links.over(load))


def links_used(traffic: LinkTraffic) -> tuple[LinkUse, ...]:
    """Return the use of each host's link: now, and after the loss with the highest traffic on it."""
    links, now = traffic.links, traffic.now
    losses = [(words, traffic.after(lost)) for words, lost in traffic.losses()]
    return tuple(_used(links, host, now, losses) for host in links.takes_mbit_s)


def _used(
    links: NetworkLinkLoads, host: str, now: Mapping[LinkDirection, float], losses: list[tuple[str, Mapping[LinkDirection, float]]]
) -> LinkUse:
    ways = LinkDirection(host), LinkDirection(host, True)
    carried = [(words, load) for words, load in losses if links.hold(load)]
    words, worst = max(carried, key=lambda one: max(one[1].get(way, 0.0) for way in ways), default=("", {}))
    return LinkUse(
        host=host,
        takes_mbit_s=links.takes_mbit_s[host],
        in_mbit_s=now.get(ways[0], 0.0),
        out_mbit_s=now.get(ways[1], 0.0),
        worst=words,
        worst_in_mbit_s=worst.get(ways[0], 0.0),
        worst_out_mbit_s=worst.get(ways[1], 0.0),
    )
