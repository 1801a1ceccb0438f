"""Messages about problems of a plan, and notes on a plan without problems."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.prediction.rates import HostedServer, Rates, frame_rows, keeps_frames
from ros2_rfm_serving.scheduler.problem import PlanningProblem, TaskClass
from ros2_rfm_serving.scheduler.solution import RESERVE, SLO_SLACK, ServerSolution, Stream, TaskSolution

NEGLECTED = 0.05
"""Share of its closed loop below which a robot counts as hardly acting."""
RARE_S = 60.0
"""Time between two requests beyond which a robot's first minute only has the first one."""
SURE = 0.98
"""Share of a floor below which it is missed: rates by queues have an error of one or two per cent."""


def missed(servers: Sequence[ServerSolution]) -> dict[str, list[str]]:
    """Return task -> messages about streams that miss their SLO at the declared percentile."""
    texts: dict[str, list[str]] = defaultdict(list)
    for server in servers:
        for stream in server.streams:
            if not stream.keeps_slo:
                text = (
                    f"{stream.component} of {stream.task!r} on {server.server}: {_predicted(stream)}, "
                    f"the SLO is {1e3 * stream.slo_s:.0f} ms{_margin(stream)}{_reserve(stream)}"
                )
                texts[stream.task].append(text)
    return dict(texts)


def without_room(problem: PlanningProblem, curves: Curves, hosts: Iterable[HostedServer]) -> Iterator[str]:
    """Yield messages about servers that refuse some of their robots' pipelined sessions."""
    for host in hosts:
        if not keeps_frames(problem, curves, host):
            yield (
                f"pipelined sessions that share a server of {host.config.model!r} keep {frame_rows(problem, host)} rows there, "
                f"which has {curves.frame_rows(host.config)} for them; give them more servers, or fewer stages"
            )


def _predicted(stream: Stream) -> str:
    if math.isinf(stream.judged_s):
        if stream.slo.frames_s and math.isfinite(stream.latency_s):
            return "robots refuse answers, for observations are older than a chunk lasts (pp_perception, fetch_offset)"
        return "more is asked than was ever measured"
    return f"predicted p{stream.percentile:g} {1e3 * stream.judged_s:.0f} ms{_on_the_way(stream)}"


def _on_the_way(stream: Stream) -> str:
    return " with the network" if stream.slo.travel_s else ""


def _margin(stream: Stream) -> str:
    return f", of which the margin leaves {1e3 * stream.slo.kept_s:.0f}" if stream.slo.margin else ""


def _reserve(stream: Stream) -> str:
    """Return the note on the reserve, if the robots' own queue alone would keep the SLO."""
    spent = stream.judged_s <= stream.slo.kept_s * SLO_SLACK
    return f", of which {RESERVE:.0%} are in reserve, for the curve does not keep it" if spent else ""


def neglected(tasks: Mapping[str, TaskSolution]) -> Iterator[str]:
    """Yield notes on robots that hardly act because others' actions are worth more."""
    for name, task in tasks.items():
        if task.served and task.slowest_rate_hz < NEGLECTED * task.closed_loop_rate_hz:
            alone = "; what each asks first comes while all start, and may be late" if task.slowest_rate_hz * RARE_S < 1.0 else ""
            yield (
                f"robots of {name!r} go at {task.slowest_rate_hz:.2g} actions/s, for others' actions are worth more or cost less; "
                f"declare min_action_rate_hz if that is too slow{alone}"
            )


def below_floor(problem: PlanningProblem, rates: Rates, slowest: Rates) -> Iterator[str]:
    """Yield messages about robots that are expected to act less often than their floor."""
    for task, by_curve_hz, hz in zip(problem.classes, rates, slowest, strict=True):
        if task.num_robots and hz < SURE * task.floor_hz:
            why = ": they wait longer in their own queue than by the curve" if by_curve_hz >= SURE * task.floor_hz else ""
            yield (
                f"robots of {task.name!r} are expected to go at {hz:.2f} actions/s, below their floor of {task.floor_hz:g}{why}; "
                f"give them more or faster servers, or lower min_action_rate_hz to {_lower(task, hz)}"
            )


def _lower(task: TaskClass, hz: float) -> str:
    """Return the floor that would be kept, in the form of its declaration."""
    kept_hz = hz * task.class_floor_hz / task.floor_hz if task.class_floor_hz else hz
    return f"{'per_class: ' if task.class_floor_hz else ''}{math.floor(100 * kept_hz) / 100:g}"


def unlucky(servers: Sequence[ServerSolution]) -> Iterator[str]:
    """Yield notes on servers whose SLOs depend on the start: nine of ten starts keep them."""
    for server in servers:
        if server.unlucky and all(stream.keeps_slo for stream in server.streams):
            share = f"{100 * server.unlucky:.0f} %"
            yield f"{server.server}: after {share} of the ways to start its robots miss an SLO, for they meet there again and again"


def beyond(servers: Sequence[ServerSolution]) -> Iterator[str]:
    """Yield notes on servers outside of the profile."""
    for (model, gpu_type), count in Counter((s.model, s.gpu_type) for s in servers if s.beyond_profile).items():
        yield (
            f"{count} server{'s' if count > 1 else ''} of {model!r} on {gpu_type}: robots ask for more than was ever measured; "
            "the latency is not the profile's but what is left of the robots' cycles"
        )
