"""A solution as tables: placement, routes, tasks; several policies side by side."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.monitoring.plain import PlainTable
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.reports.placement import alike, allocation, components_of, gpu_of, limits_of, names
from ros2_rfm_serving.scheduler.solution import SLO_SLACK, LinkUse, ServerSolution, Solution, Stream, TaskSolution

NONE = "-"
SERVER = re.compile(r"server_\w+")
WORTH_SAYING = 0.005
"""Share of the objective by which an expected value has to differ to be shown."""
REMEDY = "feasible with"
"""Beginning of the scheduler's remedies."""


def plan_report(solution: Solution, factory: Factory, profile: Profile) -> Group:
    """Return the tables of `rfm plan`."""
    parts: list[RenderableType] = []
    if solution.servers:
        parts += [_placement(solution, profile), _routes(solution), _tasks(solution, factory)]
        parts += [_links(solution.links)] if solution.links else []
    parts.append(summary(solution))
    parts += [Text(f"note: {note}", style="yellow") for note in solution.notes]
    parts += problem_lines(solution.problems)
    return Group(*parts)


def summary(solution: Solution) -> Text:
    if not solution.feasible:
        head = Text.assemble(("infeasible", "bold red"), f" with policy {solution.policy}; ")
    else:
        head = Text.assemble(("feasible", "bold green"), f" with policy {solution.policy}; ")
    until_then = ": this is the best schedule found until then" if solution.servers else ""
    cut = "" if solution.complete else f"; the work that was allowed is done{until_then}"
    by_curves = f"objective {solution.objective:.2f} actions/s (weighted{_aim(solution)}){_bound(solution)}"
    return head.append(f"{by_curves}{_expected(solution)}; work {solution.work:.2f}{cut}")


def _aim(solution: Solution) -> str:
    """Return the throughput where the objective differs from it, because slow robots have a larger weight."""
    aside = solution.throughput > solution.objective * (1 + WORTH_SAYING)
    return f"; {solution.throughput:.2f} in all, of which those of slow robots count more" if aside else ""


def _expected(solution: Solution) -> str:
    if solution.expected > solution.throughput * (1 + WORTH_SAYING):
        return f"; {solution.expected:.2f} expected of robots that keep pace by themselves, which no curve counts"
    if solution.expected < solution.throughput * (1 - WORTH_SAYING):
        return f"; {solution.expected:.2f} expected of robots that wait longer in their own queue than by any curve"
    return ""


def _bound(solution: Solution) -> str:
    """Return the bound. The SLOs of robots without caps are judged by their own queue, which may keep an SLO that the curves do
    not keep: the bound does not cover such a schedule."""
    if not math.isfinite(solution.bound):
        return ", by the profile's curves"
    if solution.objective > solution.bound * SLO_SLACK:
        least = f"; no schedule that keeps its SLOs by the profile's curves is above {solution.bound:.2f}"
        return f"{least}, this one keeps them by its robots' own queue"
    if solution.expected_objective > solution.bound * SLO_SLACK:
        return f", no schedule by the profile's curves is above {solution.bound:.2f}; what is expected is, for no curve counts it"
    if not solution.bounded:
        return f", no schedule of this kind is above {solution.bound:.2f}, which is a loose bound of {_loose(solution)}"
    return f", no schedule is above {solution.bound:.2f} (gap {percent(solution.shown_gap)}), both by the profile's curves"


def _loose(solution: Solution) -> str:
    """Return the reason why a bound is loose."""
    if solution.shares_gpus:
        return "models that share GPUs"
    if solution.beyond_curves:
        return "robots that keep SLOs by their own queue"
    return "robots whose own queue is slower than the curves" if solution.below_curves else "the lowest share (max_min)"


def problem_lines(problems: Iterable[str]) -> list[Text]:
    """Return the problems, with remedies last."""
    return [
        Text(f"remedy: {text}", "yellow") if text.startswith(REMEDY) else Text(f"problem: {text}", "red")
        for text in sorted(collapsed(problems), key=lambda text: text.startswith(REMEDY))
    ]


def collapsed(problems: Iterable[str]) -> list[str]:
    """Merge the same problem of several servers into one."""
    servers: dict[str, list[str]] = defaultdict(list)
    for problem in problems:
        found = SERVER.findall(problem)
        servers[SERVER.sub("{}", problem, count=1) if len(found) == 1 else problem] += found[:1]
    return [template.replace("{}", names(found)) if found else template for template, found in servers.items()]


def _placement(solution: Solution, profile: Profile) -> PlainTable:
    heading = "placement: figures of one server; a range where servers differ"
    table = PlainTable(title=heading, title_justify="left")
    for name in ("server", "GPU", "model", "serves", "batch"):
        table.add_column(name, overflow="fold")
    for name in ("robots", "load\n(Hz)", "utilisation\n(% of max)", "latency\n(ms)", "at", "SLO\n(ms)"):
        table.add_column(name, justify="right")
    for group in alike(solution.servers):
        first, limits = group[0], [limits_of(server, solution, profile) for server in group]
        used = [100 * server.rate_hz / limit.max_rate_hz for server, limit in zip(group, limits, strict=True)]
        shared = f"part of {names(sorted({gpu_of(s) for s in group}, key=_in_number))}, " if first.gpu else ""
        table.add_row(
            names(server.server for server in group),
            shared + first.gpu_type,
            escape(first.model),
            "standby" if first.standby else ", ".join(dict.fromkeys(stream.component for stream in first.streams)) or "idle",
            first.batching if first.batching == "continuous" else str(first.batch_size),
            span([server.num_streams for server in group], "d"),
            span([server.rate_hz for server in group], ".1f"),
            span(used, ".0f"),
            span([1e3 * tail_s for _, tail_s in map(_tail, group)], ".0f"),
            f"p{_tail(first)[0]:g}",
            number(1e3 * limits[0].slo_s, ".0f"),
            style="dim" if first.standby else "",
        )
    return table


def _links(links: Sequence[LinkUse]) -> PlainTable:
    heading = "links: Mbit/s that robots and servers may send at the most; worst: after the loss after which it is most"
    table = PlainTable(title=heading, title_justify="left")
    table.add_column("host")
    for name in ("takes\neach way", "to it", "from it", "worst\nto it", "worst\nfrom it"):
        table.add_column(name, justify="right")
    table.add_column("after", overflow="fold")
    for link in links:
        worst = (f"{link.worst_in_mbit_s:.1f}", f"{link.worst_out_mbit_s:.1f}", link.worst) if link.worst else (NONE, NONE, NONE)
        table.add_row(link.host, f"{link.takes_mbit_s:.1f}", f"{link.in_mbit_s:.1f}", f"{link.out_mbit_s:.1f}", *worst)
    return table


def _tail(server: ServerSolution) -> tuple[float, float]:
    """Return the percentile of a server's tightest SLO, and its latency there."""
    tightest = min(server.streams, key=lambda stream: stream.server_slo_s, default=None)
    return (tightest.percentile, tightest.latency_s) if tightest else (99.0, server.p99_s)


def _in_number(name: str) -> tuple[int, str]:
    return int("0" + "".join(c for c in name if c.isdigit())), name


def _routes(solution: Solution) -> PlainTable:
    heading = "routes: of each task and component; rates of one robot; worst: from request to reply, the network in it"
    table = PlainTable(title=heading, title_justify="left")
    for name in ("task", "component"):
        table.add_column(name)
    table.add_column("servers", overflow="fold")
    for name in ("robots", "rate\n(Hz)", "at most\n(Hz)", "worst\n(ms)", "network\n(ms)", "at", "SLO\n(ms)"):
        table.add_column(name, justify="right")
    streams: dict[tuple[str, str], list[tuple[ServerSolution, Stream]]] = defaultdict(list)
    for server in solution.servers:
        for stream in server.streams:
            streams[stream.task, stream.component].append((server, stream))
    for (task, component), places in sorted(streams.items(), key=lambda item: list(solution.tasks).index(item[0][0])):
        table.add_row(
            task,
            component,
            names(server.server for server, _ in places),
            str(sum(stream.num_robots for _, stream in places)),
            span([stream.rate_hz for _, stream in places], ".2f"),
            span([stream.cap_hz for _, stream in places], ".2f", infinite="unlimited"),
            number(max(1e3 * stream.response_s for _, stream in places), ".0f"),
            number(1e3 * places[0][1].network_s, ".0f") if places[0][1].network_s else NONE,
            f"p{places[0][1].percentile:g}",
            number(1e3 * places[0][1].slo_s, ".0f"),
        )
    return table


def _tasks(solution: Solution, factory: Factory) -> PlainTable:
    table = PlainTable(title="tasks: rates of one robot", title_justify="left")
    table.add_column("task")
    for name in ("robots", "served", "value", "action rate\n(Hz)", "closed loop\n(Hz)", "floor\n(Hz)", "all robots\n(actions/s)"):
        table.add_column(name, justify="right")
    for name, task in solution.tasks.items():
        floor_hz = factory.tasks[name].floor_hz(task.num_robots)
        table.add_row(
            name,
            str(task.num_robots),
            str(task.served),
            f"{factory.tasks[name].value:g}",
            _mean_and_least(task),
            number(task.closed_loop_rate_hz, ".2f"),
            f"{floor_hz:.2f}" if floor_hz else NONE,
            f"{task.served * task.action_rate_hz:.1f}",
        )
    return table


def _mean_and_least(task: TaskSolution) -> str:
    """Return the mean rate, and the lowest one where it differs, because robots on other servers may have other rates."""
    mean, least = f"{task.action_rate_hz:.2f}", f"{task.slowest_rate_hz:.2f}"
    return mean if mean == least else f"{mean}, at least {least}"


def comparison(solutions: Mapping[str, Solution], factory: Factory) -> PlainTable:
    """Return a table with one line per policy."""
    components = components_of(factory)
    table = PlainTable(title=f"policies; GPUs: {':'.join(components)}", title_justify="left")
    table.add_column("policy")
    for name in ("objective\n(actions/s)", "gap to\nthe bound"):
        table.add_column(name, justify="right")
    table.add_column("GPUs", overflow="fold")
    table.add_column("work", justify="right")
    table.add_column("meets every SLO and floor", overflow="fold")
    for policy, solution in solutions.items():
        problems = collapsed(solution.problems)
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        verdict = Text("yes", "green") if solution.feasible else Text(f"no: {problems[0]}{more}", "red")
        table.add_row(
            policy,
            f"{solution.objective:.2f}",
            percent(solution.shown_gap),
            allocation(solution, components) if solution.servers else NONE,
            f"{solution.work:.2f}",
            verdict,
        )
    return table


def number(value: float, form: str, infinite: str = NONE) -> str:
    return format(value, form) if math.isfinite(value) else infinite


def percent(share: float) -> str:
    return f"{100 * share:.1f} %" if math.isfinite(share) else NONE


def span(values: Sequence[float], form: str, infinite: str = NONE) -> str:
    """Return one number where all print alike, else lowest-highest."""
    texts = [number(value, form, infinite) for value in (min(values), max(values))]
    return texts[0] if texts[0] == texts[1] else "-".join(texts)
