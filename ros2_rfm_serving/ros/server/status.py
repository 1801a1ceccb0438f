"""Status message of a model server, and the same for `/diagnostics`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus
from rfm_serving import msg

from ros2_rfm_serving.ros import following
from ros2_rfm_serving.ros.following import TWO_SCHEDULERS
from ros2_rfm_serving.ros.node.diagnostics import key_values
from ros2_rfm_serving.ros.wire import convert
from ros2_rfm_serving.server import ModelServer
from ros2_rfm_serving.types import ScheduleFollower, ServerState

LEVELS = {
    ServerState.LOADING: DiagnosticStatus.WARN,
    ServerState.READY: DiagnosticStatus.OK,
    ServerState.DRAINING: DiagnosticStatus.WARN,
    ServerState.FAILED: DiagnosticStatus.ERROR,
    ServerState.HUNG: DiagnosticStatus.ERROR,
}
FIGURES = (
    *("model", "emulated", "sessions", "max_sessions", "waiting", "dispatch", "batch_size", "mean_batch_size"),
    *("request_rate_hz", "latency_p50_s", "latency_p99_s", "load", "served", "superseded", "refetched"),
)
"""Fields of the status that diagnostics repeat."""


COUNTED = ("served", "superseded", "refetched")
"""Counts since the process began, over all its models: a count that starts anew shows a restart."""


def status_message(
    name: str,
    state: ServerState,
    detail: str,
    followed: ScheduleFollower,
    refused: Counter[str],
    server: ModelServer | None,
    now_s: float,
    *,
    former: Mapping[str, int],
) -> Any:
    """Return the status message.
    refused: refusals by the node, before there was a server or outside of it. former: `COUNTED` of the previous models."""
    status = msg.ServerStatus(
        state=int(state),
        detail=detail,
        scheduler=followed.scheduler,
        schedule_epoch=followed.epoch,
        refused=convert.counters_to(refused),
    )
    status.header.frame_id = name
    status.latency_p50_s = status.latency_p99_s = math.nan
    if server:
        contract, snapshot = server.contract, server.snapshot(now_s)
        status.model, status.model_hash, status.emulated = contract.model, contract.model_hash, contract.emulated
        for field in status.get_fields_and_field_types().keys() & vars(snapshot).keys() - {"refused", "histograms"}:
            setattr(status, field, getattr(snapshot, field))
        status.refused = convert.counters_to(refused + Counter(snapshot.refused))
        status.histograms = [convert.histogram_to(name, histogram) for name, histogram in snapshot.histograms.items()]
    for field in COUNTED:
        setattr(status, field, getattr(status, field) + former.get(field, 0))
    return status


def diagnosis(status: Any, followed: ScheduleFollower, now_s: float, server: ModelServer | None = None) -> DiagnosticStatus:
    """Return the diagnostics of `<server>: server`. The level is OK when it serves; WARN when it does not yet, or not the model
    of the schedule, or when two schedulers send it schedules; else ERROR."""
    state, name = ServerState(status.state), status.header.frame_id
    level, message = LEVELS[state], status.detail or state.name.lower()
    if level == DiagnosticStatus.OK and status.detail:
        level = DiagnosticStatus.WARN
    if level == DiagnosticStatus.OK and followed.num_rivals(now_s):
        level, message = DiagnosticStatus.WARN, TWO_SCHEDULERS
    values = {
        "state": state.name,
        **following.values(followed, now_s),
        **{field: getattr(status, field) for field in FIGURES},
        **{f"refused {counter.name}": counter.count for counter in status.refused},
        **(_figures_of_engine(server) if server else {}),
    }
    return DiagnosticStatus(level=level, name=f"{name}: server", message=message, hardware_id=name, values=key_values(values))


def _figures_of_engine(server: ModelServer) -> dict[str, object]:
    """Return figures that no message has: drift of the engine from its profile, sessions over quota, and empty answers."""
    drift = server.drift
    figures: dict[str, object] = {f"drift_{name}": value for name, value in drift._asdict().items()} if drift else {}
    figures |= {f"answered {kind}": count for kind, count in server.answers.items()}
    figures |= {f"last {kind}": problem for kind, problem in tuple(server.last_refusals.items())}
    return figures | {f"over_quota {session}": count for session, count in server.over_quota.items()}
