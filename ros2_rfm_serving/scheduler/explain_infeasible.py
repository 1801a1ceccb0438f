"""Reasons why a factory cannot be served, and remedies that would make it possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from ros2_rfm_serving.factory import Factory
from ros2_rfm_serving.factory.cluster import StragglerConfig
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.problem import Demand, PlanningProblem
from ros2_rfm_serving.scheduler.slo import Slo

Feasible = Callable[[Factory, Mapping[str, int]], bool]
"""Predicate: whether this factory, with these numbers of robots per task, can be served."""
MOST_SERVERS = 4096
"""Largest number of servers that is tried."""
LOOSER = (1.5, 2.0, 3.0, 5.0, 10.0)
"""Factors of an SLO that are tried, the last one first, because each infeasible one costs a plan in vain."""


def hopeless(problem: PlanningProblem, curves: Curves) -> tuple[str, ...]:
    """Return problems that more servers do not solve: unmeasured or too large models, too low SLOs, too high floors."""
    return (*_models(problem, curves), *_slos(problem, curves), *_frames(problem, curves), *_floors(problem, curves))


def _models(problem: PlanningProblem, curves: Curves) -> Iterator[str]:
    for model in problem.models:
        if curves.of(model):
            continue
        types = ", ".join(problem.gpus)
        if not any((model, gpu_type) in problem.memory_gb for gpu_type in problem.gpus):
            yield f"{model!r} fits into the memory of no GPU type of this factory ({types})"
        else:
            known = sorted({g for m, g, _, _ in curves.profile.measured() if m == model})
            where = f"it was measured on {', '.join(known)}" if known else "it was never measured"
            yield f"no latency profile of {model!r} on {types}; {where}: run `rfm profile` there"


def _slos(problem: PlanningProblem, curves: Curves) -> Iterator[str]:
    for demand in problem.demands:
        options = curves.of(demand.model)
        if options and not any(curves.sought_hz(c, demand.slo) > 0 for c in options):
            slo = demand.slo
            alone = [curves.alone_s(c, slo.percentile) for c in options]
            least_s = min(slo.response_s(tail_s, mean_s) for tail_s, mean_s in alone) / (1 - slo.margin)
            task = problem.classes[demand.task].name
            yield (
                f"{demand.component} of {task!r}: {demand.model!r} needs {1e3 * min(tail_s for tail_s, _ in alone):.0f} ms "
                f"(p{slo.percentile:g}) unloaded{_with(curves)} by what was measured; "
                f"by that the SLO of {1e3 * slo.promised_s:.0f} ms cannot be met"
                f"{_left(slo)}; raise slo_ms above {1e3 * least_s:.0f}{_or_promise(slo, curves)}, or use a faster model or GPU"
            )


def _with(curves: Curves) -> str:
    some = _most(curves)
    return f" where {some.share:.3g} of all services take {some.factor:g} times as long" if some else ""


def _most(curves: Curves) -> StragglerConfig | None:
    return max(curves.stragglers.values(), key=lambda some: some.pace, default=None)


def _or_promise(slo: Slo, curves: Curves) -> str:
    """Return advice to promise a percentile below the share of straggling services, or an empty text."""
    some = _most(curves)
    below = 100 * (1 - some.share) if some else 0.0
    return f", promise a percentile below {below:g}" if slo.percentile >= below > 0 else ""


def _frames(problem: PlanningProblem, curves: Curves) -> Iterator[str]:
    """Yield demands for pipelined sessions that no server accepts."""
    for demand in problem.demands:
        if demand.rows and not _sessions(demand, curves):
            yield (
                f"{demand.component} of {problem.classes[demand.task].name!r}: a pipelined session keeps {demand.rows} rows in "
                f"flight, and no server of {demand.model!r} has as many for them; use fewer stages, or batching: continuous"
            )


def _sessions(demand: Demand, curves: Curves) -> float:
    """Return the largest number of pipelined sessions of this kind that one server accepts."""
    return max((curves.frame_rows(c) for c in curves.of(demand.model)), default=math.inf) // demand.rows


def _left(slo: Slo) -> str:
    """Return a text on the parts of an SLO that are used before the server has any of it."""
    network = f"the network ({1e3 * slo.far_s:.0f} ms)" if slo.travel_s else ""
    frames = f"a session's next frames ({1e3 * slo.frames_s:.0f} ms)" if slo.frames_s else ""
    margin = f"a margin of {slo.margin:.0%}" if slo.margin else ""
    parts = [text for text in (network, frames, margin) if text]
    leave, left_s = "leave" if len(parts) > 1 or frames else "leaves", slo.kept_s - slo.far_s - slo.frames_s
    return f": {' and '.join(parts)} {leave} {1e3 * max(left_s, 0.0):.0f} ms for the server" if parts else ""


def _floors(problem: PlanningProblem, curves: Curves) -> Iterator[str]:
    for task in problem.classes:
        fastest = {d.index: min((curves.mean(c).y[0] for c in curves.of(d.model)), default=math.inf) for d in task.coupled}
        most_hz = task.closed_loop_hz(fastest)
        if task.floor_hz > most_hz:
            yield (
                f"{task.name!r}: the floor of {task.floor_hz:g} actions/s per robot is above what an unloaded server allows "
                f"({most_hz:.2f}); lower min_action_rate_hz or action_period_ms"
            )


def reasons(problem: PlanningProblem, curves: Curves) -> tuple[str, ...]:
    """Return why more servers are needed: the fewest that each model needs by itself. Empty: no model alone is the reason."""
    needs = {model: _fewest_servers(model, problem, curves) for model in problem.models}
    total = sum(count for count, _ in needs.values())
    available = len(problem.servers)
    if total <= available:
        return ()
    if len(problem.models) > available:
        each = f"{len(problem.models)} models need a server each, or share GPUs in time slices ({', '.join(problem.models)})"
        return (f"{each}; there are {available} servers",)
    lines = [f"{model!r} needs at least {count} ({why})" for model, (count, why) in needs.items() if count > 1]
    return (f"by the curves the obligations and floors need at least {total} servers, there are {available}", *lines)


def _fewest_servers(model: str, problem: PlanningProblem, curves: Curves) -> tuple[int, str]:
    """Return the fewest servers for each demand's load within its SLO and for the rows of pipelined sessions, with reasons."""
    servers, kept, texts = 0.0, 0.0, []
    for demand in problem.demands:
        robots, task = problem.robots_of(demand), problem.classes[demand.task]
        load_hz = robots * demand.rate_hz(task.floor_hz)
        if demand.model == model and demand.rows and robots:
            kept += robots / _sessions(demand, curves)
            texts.append(f"{demand.component} of {task.name!r}: one server takes {_sessions(demand, curves):g} pipelined sessions")
        if demand.model == model and load_hz > 0:
            most_hz = max(curves.sought_hz(c, demand.slo) for c in curves.of(model))
            servers += load_hz / most_hz
            texts.append(
                f"{demand.component} of {task.name!r}: {load_hz:.1f} requests/s, one server carries {most_hz:.1f} within the SLO"
            )
    return max(1, math.ceil(max(servers, kept) - 1e-9)), "; ".join(texts)


def remedies(
    factory: Factory,
    counts: Mapping[str, int],
    feasible: Feasible,
) -> tuple[str, ...]:
    """Return changes that the solver found feasible: more GPUs, fewer robots, a looser SLO. The quick search may miss some."""
    return tuple(
        text
        for text in (
            _more_servers(factory, counts, feasible),
            _fewer_robots(factory, counts, feasible),
            *_looser_slos(factory, counts, feasible),
        )
        if text
    )


def _more_servers(factory: Factory, counts: Mapping[str, int], feasible: Feasible) -> str:
    declared = factory.server_cluster[0].num_servers
    high = declared + 1
    while not feasible(factory.with_num_servers(high), counts):
        high = declared + 2 * (high - declared)
        if high > MOST_SERVERS:
            return f"no plan is known with more servers alone either (looked for quickly, with up to {MOST_SERVERS})"
    low = declared + (high - declared) // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if feasible(factory.with_num_servers(middle), counts) else (middle, high)
    more = high - declared
    gpu_type = factory.server_cluster[0].gpu_type
    return f"feasible with {more} more GPU{'s' if more > 1 else ''} ({high} x {gpu_type})"


def _fewer_robots(factory: Factory, counts: Mapping[str, int], feasible: Feasible) -> str:
    total = sum(counts.values())

    def scaled(robots: int) -> dict[str, int]:
        return {task: max(1, count * robots // total) for task, count in counts.items() if count}

    low, high = len(scaled(total)), total
    if low >= high or not feasible(factory, scaled(low)):
        return "" if low >= high else "no plan is known for one robot of each task either (looked for quickly)"
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if feasible(factory, scaled(middle)) else (low, middle)
    fleet = ", ".join(f"{n} x {task}" for task, n in scaled(low).items())
    return f"feasible with fewer robots: {fleet}"


def _looser_slos(factory: Factory, counts: Mapping[str, int], feasible: Feasible) -> Iterator[str]:
    for task, count in counts.items():
        if not count:
            continue
        for component, spec in factory.tasks[task].components.items():
            if spec.slo_ms is None:
                continue
            asked_ms = [spec.slo_ms * factor for factor in LOOSER]
            if feasible(_with_slo(factory, task, component, asked_ms[-1]), counts):  # otherwise no smaller factor is feasible
                within = (ms for ms in asked_ms[:-1] if feasible(_with_slo(factory, task, component, ms), counts))
                enough_ms = next(within, asked_ms[-1])
                yield f"feasible with slo_ms {enough_ms:g} instead of {spec.slo_ms:g} for {component} of {task!r}"


def _with_slo(factory: Factory, task: str, component: str, slo_ms: float) -> Factory:
    old = factory.tasks[task]
    spec = old.components[component].model_copy(update={"slo_ms": slo_ms})
    changed = old.model_copy(update={"components": {**old.components, component: spec}})
    return factory.model_copy(update={"tasks": {**factory.tasks, task: changed}})
