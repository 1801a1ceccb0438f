"""Conversion between messages and the classes of `types`. Bulk data is copied at most once; invalid data raises `BadMessageError`.

Reading shares memory with the message (`np.frombuffer`). Writing copies once, into an `array.array` that `put` makes the field's
own: the generated setters and constructors would copy it again.
"""

from __future__ import annotations

import array
import math
import struct
from typing import Any

import numpy as np
from rclpy.node import Node
from rfm_serving import msg
from sensor_msgs.msg import CompressedImage

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.wire import session_messages
from ros2_rfm_serving.ros.wire.bounded import HEADER_BYTES, STAMP_ENDS
from ros2_rfm_serving.types import (
    MAX_INSTRUCTION_CHARACTERS,
    ActionChunk,
    Array,
    EncodedImage,
    ExecutionReport,
    JudgeVerdict,
    ObservationRequest,
    Placement,
    Reply,
    RequestId,
    Route,
    Schedule,
    ServingStats,
    SubgoalPlan,
    empty,
)
from ros2_rfm_serving.types.histogram import Histogram

MAX_TENSOR_VALUES = 1 << 20
check_name = session_messages.check_name
grant_from, session_request_to = session_messages.grant_from, session_messages.session_request_to


def floats(values: Any) -> Array:
    """Return a float32[] field as an array, without a copy."""
    result: Array = np.frombuffer(values, np.float32) if len(values) else empty(0)
    return result


def packed(values: Array) -> array.array[float]:
    """Return an array as the value of a float32[] field, copied once."""
    field = array.array("f")
    field.frombytes(np.ascontiguousarray(values, np.float32).data.cast("B") if values.size else b"")
    return field


def put(message: Any, field: str, values: array.array[Any]) -> None:
    """Make `values` the bulk field of a message without a copy; the type code must be the field's."""
    setattr(message, f"_{field}", values)


def stamped(message: Any, node: Node) -> Any:
    """Set the ROS time of sending, and return the message; it is for tools, no code here reads a stamp of another machine."""
    message.header.stamp = node.get_clock().now().to_msg()
    return message


def stamped_bytes(data: bytes, now: Any) -> bytes:
    """Set the stamp in a serialized message that begins with a header. now: `builtin_interfaces/Time`."""
    return data[:HEADER_BYTES] + struct.pack("<iI", now.sec, now.nanosec) + data[STAMP_ENDS:]


def tensor_from(message: Any) -> Array:
    """Return a tensor as an array [rows, columns]. Raises: `BadMessageError`."""
    return shaped(message.rows, message.columns, floats(message.data))


def shaped(rows: int, columns: int, values: Array) -> Array:
    """Return values as an array [rows, columns]. Raises: `BadMessageError`."""
    if rows * columns != values.size or max(rows, columns, values.size) > MAX_TENSOR_VALUES:
        raise BadMessageError("bad_shape", f"a tensor says {rows} x {columns} and carries {values.size} values")
    return values.reshape(rows, columns)


def tensor_to(values: Array) -> Any:
    message = msg.Tensor()
    message.rows, message.columns = values.shape
    put(message, "data", packed(values))
    return message


def id_from(message: Any) -> RequestId:
    return RequestId(
        robot=message.robot,
        component=message.component,
        session_epoch=message.session_epoch,
        episode=message.episode,
        sequence=message.sequence,
    )


def id_to(request: RequestId) -> Any:
    return msg.RequestId(
        robot=request.robot,
        component=request.component,
        session_epoch=request.session_epoch,
        episode=request.episode,
        sequence=request.sequence,
    )


def observation_from(message: Any) -> ObservationRequest:
    """Convert an observation. Raises: `BadMessageError`."""
    return ObservationRequest(
        id=id_from(message.id),
        stamp_ns=message.stamp_ns,
        instruction=message.instruction,
        state=floats(message.state),
        images=tuple(
            EncodedImage(camera=image.header.frame_id, format=image.format, data=memoryview(image.data)) for image in message.images
        ),
        inference_delay_steps=message.inference_delay_steps,
        prefix_model=tensor_from(message.prefix_model),
        prefix_robot=tensor_from(message.prefix_robot),
        report=ExecutionReport(
            executed_steps=message.report.executed_steps,
            executing_s=message.report.executing_s,
            remaining_s=message.report.remaining_s,
            last_wait_s=message.report.last_wait_s,
        ),
        episode_start=message.episode_start,
    )


def observation_to(request: ObservationRequest) -> Any:
    message = msg.Observation(
        id=id_to(request.id),
        stamp_ns=request.stamp_ns,
        instruction=request.instruction,
        images=[image_to(image) for image in request.images],
        episode_start=request.episode_start,
        inference_delay_steps=request.inference_delay_steps,
        prefix_model=tensor_to(request.prefix_model),
        prefix_robot=tensor_to(request.prefix_robot),
    )
    message.header.frame_id = request.id.robot
    put(message, "state", packed(request.state))
    message.report.executed_steps = min(request.report.executed_steps, 0xFFFF)
    message.report.executing_s = request.report.executing_s
    message.report.remaining_s = request.report.remaining_s
    message.report.last_wait_s = request.report.last_wait_s
    return message


def image_to(image: EncodedImage) -> Any:
    data = image.data.obj if isinstance(image.data, memoryview) and isinstance(image.data.obj, array.array) else None
    message = CompressedImage(format=image.format)
    put(message, "data", array.array("B", image.data) if data is None else data)
    message.header.frame_id = image.camera
    return message


def served_from(message: Any) -> ServingStats:
    return ServingStats(
        queue_wait_s=message.queue_wait_s,
        inference_s=message.inference_s,
        batch_size=message.batch_size,
        superseded=message.superseded,
        server_load=message.server_load,
        perception_s=message.perception_s,
        solver_s=message.solver_s,
        solver_steps=message.solver_steps,
        excess_delay_s=message.unusual_s,
        decoding_s=message.decoding_s,
    )


def served_to(served: ServingStats) -> Any:
    return msg.Served(
        queue_wait_s=served.queue_wait_s,
        inference_s=served.inference_s,
        batch_size=served.batch_size,
        superseded=served.superseded,
        server_load=served.server_load,
        perception_s=served.perception_s,
        solver_s=served.solver_s,
        solver_steps=min(served.solver_steps, 0xFFFF),
        unusual_s=served.excess_delay_s,
        decoding_s=served.decoding_s,
    )


def chunk_from(message: Any) -> ActionChunk:
    """Convert a chunk. Raises: `BadMessageError`."""
    chunk = ActionChunk(
        id=id_from(message.id),
        stamp_ns=message.stamp_ns,
        server=message.header.frame_id,
        model_hash=message.model_hash,
        action_names=tuple(message.action_names),
        chunk_model=tensor_from(message.chunk_model),
        chunk_robot=tensor_from(message.chunk_robot),
        confidence=floats(message.confidence),
        execution_horizon=message.execution_horizon,
        ended_with=message.ended_with or None,
        inference_delay_steps=message.inference_delay_steps,
        served=served_from(message.served),
        emulated=message.emulated,
    )
    return checked_chunk(chunk)


def checked_chunk(chunk: ActionChunk) -> ActionChunk:
    """Check a chunk and return it. Raises: `BadMessageError`."""
    if len(chunk.confidence) not in (0, len(chunk.chunk_robot)):
        raise BadMessageError("bad_shape", f"{len(chunk.confidence)} confidences for {len(chunk.chunk_robot)} actions")
    if chunk.ended_with is not None and chunk.ended_with < chunk.id.sequence:
        raise BadMessageError("wrong_context", f"an answer to request {chunk.id.sequence} cannot end with {chunk.ended_with}")
    return chunk


def verdict_from(message: Any) -> JudgeVerdict:
    return JudgeVerdict(
        id=id_from(message.id),
        stamp_ns=message.stamp_ns,
        server=message.header.frame_id,
        model_hash=message.model_hash,
        verdict=message.verdict,
        score=message.score,
        text=message.text,
        served=served_from(message.served),
        emulated=message.emulated,
    )


def plan_from(message: Any) -> SubgoalPlan:
    return SubgoalPlan(
        id=id_from(message.id),
        stamp_ns=message.stamp_ns,
        server=message.header.frame_id,
        model_hash=message.model_hash,
        subgoals=tuple(subgoal[:MAX_INSTRUCTION_CHARACTERS] for subgoal in message.subgoals),
        text=message.text,
        served=served_from(message.served),
        emulated=message.emulated,
    )


REPLIES: dict[type, tuple[type, str]] = {
    ActionChunk: (msg.ActionChunk, "rfm/action_chunk"),
    JudgeVerdict: (msg.Judgement, "rfm/judgement"),
    SubgoalPlan: (msg.Plan, "rfm/plan"),
}
"""Kind of reply -> (its message, the robot's topic for it)."""


def reply_to(reply: Reply) -> Any:
    message = REPLIES[type(reply)][0]()
    message.header.frame_id = reply.server
    message.id = id_to(reply.id)
    message.stamp_ns = reply.stamp_ns
    message.model_hash = reply.model_hash
    message.emulated = reply.emulated
    message.served = served_to(reply.served)
    if isinstance(reply, ActionChunk):
        message.action_names = list(reply.action_names)
        message.chunk_model = tensor_to(reply.chunk_model)
        message.chunk_robot = tensor_to(reply.chunk_robot)
        put(message, "confidence", packed(reply.confidence))
        message.execution_horizon = reply.execution_horizon
        message.ended_with = reply.ended_with or 0
        message.inference_delay_steps = reply.inference_delay_steps
    elif isinstance(reply, SubgoalPlan):
        message.subgoals, message.text = list(reply.subgoals), reply.text
    else:
        message.verdict, message.score, message.text = reply.verdict, reply.score, reply.text
    return message


def as_verdict(plan: SubgoalPlan) -> JudgeVerdict:
    """Convert a plan for clients that know judgements only: its text, and no verdict."""
    return JudgeVerdict(
        id=plan.id,
        stamp_ns=plan.stamp_ns,
        server=plan.server,
        model_hash=plan.model_hash,
        verdict="",
        score=math.nan,
        text=plan.text,
        served=plan.served,
        emulated=plan.emulated,
    )


def schedule_from(message: Any) -> Schedule:
    """Convert a schedule. Raises: `BadMessageError`.
    A route without a usable rate is left out; an infinite rate means that there is no limit."""
    servers = {p.server for p in message.placements} | {s for r in message.routes for s in (r.server, r.standby or r.server)}
    for name in servers:
        check_name("server", name)
    for name in {r.robot for r in message.routes}:
        check_name("robot", name)
    if any(p.batch_size < 1 or p.max_sessions < 1 for p in message.placements):
        raise BadMessageError("bad_schedule", "a placement has no batch size or admits no session")
    if not message.epoch:
        raise BadMessageError("bad_schedule", "its epoch is 0: they are counted from 1")
    return Schedule(
        epoch=message.epoch,
        scheduler=message.scheduler,
        policy=message.policy,
        predicted_actions_hz=message.predicted_actions_hz,
        placements=tuple(
            Placement(
                server=p.server,
                model=p.model,
                components=tuple(p.components),
                gpu_type=p.gpu_type,
                batching=p.batching,
                batch_size=p.batch_size,
                max_sessions=p.max_sessions,
                predicted_p99_s=p.predicted_p99_s,
                standby=p.standby,
            )
            for p in message.placements
        ),
        routes=tuple(
            Route(
                robot=r.robot,
                component=r.component,
                server=r.server,
                standby=r.standby,
                max_rate_hz=r.max_rate_hz,
                slo_s=r.slo_s,
                task=r.task,
            )
            for r in message.routes
            if r.max_rate_hz > 0
        ),
        released=tuple(message.released),
    )


class Routes:
    """Converter of routes that reuses messages: of a large fleet, few routes change from one schedule to the next."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Route, Any]] = {}
        """id of a route -> (the route, its message); keeping the route prevents reuse of its id."""

    def of(self, schedule: Schedule) -> list[Any]:
        kept = self._kept
        self._kept = {id(route): kept.get(id(route)) or (route, _route_to(route)) for route in schedule.routes}
        return [message for _, message in self._kept.values()]


def schedule_to(schedule: Schedule, factory: str, routes: Routes | None = None) -> Any:
    return msg.Schedule(
        epoch=schedule.epoch,
        scheduler=schedule.scheduler,
        factory=factory,
        policy=schedule.policy,
        predicted_actions_hz=schedule.predicted_actions_hz,
        gap=schedule.gap,
        placements=[msg.Placement(**_fields(msg.Placement, p) | {"components": list(p.components)}) for p in schedule.placements],
        routes=(routes or Routes()).of(schedule),
        released=list(schedule.released),
    )


def _route_to(route: Route) -> Any:
    return msg.Route(**_fields(msg.Route, route))


def _fields(message: Any, values: object) -> dict[str, Any]:
    """Return the values of a message's fields."""
    return {name: getattr(values, name) for name in message.get_fields_and_field_types()}


def histogram_to(name: str, histogram: Histogram, component: str = "") -> Any:
    bounds, counts = array.array("d", histogram.bounds), array.array("Q", histogram.counts)
    return msg.Histogram(name=name, component=component, bounds=bounds, counts=counts, sum=histogram.sum)


def counters_to(refused: dict[str, int]) -> list[Any]:
    return [msg.Counter(name=name, count=count) for name, count in sorted(refused.items())]
