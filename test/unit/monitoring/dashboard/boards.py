"""A factory on a board, as the graph would have told it."""

from __future__ import annotations

from ros2_rfm_serving.monitoring.board import Board, ComponentRow, Score
from ros2_rfm_serving.types import Placement, Route
from ros2_rfm_serving.types.histogram import Histogram

NOW_S = 100.0


def counted(*values: float) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


def route(robot: str, component: str = "system1", server: str = "s1", **more: object) -> Route:
    fields = {"max_rate_hz": 5.0, "slo_s": 0.4, "task": "push", **more}
    return Route(robot=robot, component=component, server=server, **fields)  # type: ignore[arg-type]


def placement(server: str, model: str = "rfm/flow") -> Placement:
    return Placement(
        server=server,
        model=model,
        components=("system1",),
        gpu_type="CPU",
        batching="fixed",
        batch_size=8,
        max_sessions=8,
        predicted_p99_s=0.05,
    )


def board(now_s: float = NOW_S) -> Board:
    """arm_1 streams from s1; arm_2 and s2 were never heard."""
    made = Board(["arm_1", "arm_2"], ["s1", "s2"])
    made.factory, made.policy, made.schedule_epoch, made.gap = "plant", "best", 7, 0.04
    made.scheduler, made.placed_epoch, made.schedule_seen_s = 5, 7, now_s
    made.predicted_actions_hz = 5.0
    made.placements, made.routes = (placement("s1"),), (route("arm_1"), route("arm_1", "monitor", slo_s=1.0))
    made.planned_robots, made.planned_servers = frozenset(["arm_1"]), frozenset(["s1"])
    arm, server = made.robots["arm_1"], made.servers["s1"]
    arm.state, arm.phase, arm.task, arm.server = "STREAMING", "executing", "push-it", "s1"
    arm.action_rate_hz, arm.chunk_rate_hz, arm.staleness_s, arm.round_trip_p50_s = 19.5, 4.25, 0.125, 0.0625
    arm.seen_s = server.seen_s = now_s - 0.25
    arm.components = {"system1": ComponentRow(slo_s=0.4, in_time=9, late=1)}
    server.state, server.model, server.emulated, server.served = "ready", "rfm/flow", True, 100
    server.load, server.latency_p99_s, server.batch_size, server.mean_batch_size = 0.5, 0.3, 8, 2.5
    made.score("arm_1", 1, Score("push", 1, True, 50, True))
    made.score("arm_1", 2, Score("push", 2, False, 90, True))
    return made
