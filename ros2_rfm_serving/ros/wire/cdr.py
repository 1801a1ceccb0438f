"""Serialization of the two messages of every request, `Observation` and `ActionChunk` (little-endian XCDR1).

Raw publishers and subscriptions use these functions: the generated conversion takes three to eleven times as long
(docs/serving.md). Reading shares memory with the bytes; writing copies bulk data once, and the constant part of a session's
messages is written once. test/ros/test_cdr.py compares both with the generated code, which also reads bytes of another encoding.

A field lies at a multiple of its size, counted from behind the four bytes of the header: the same as from the first byte, except
for fields of eight bytes.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from rclpy.serialization import deserialize_message, serialize_message
from rfm_serving import msg

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.wire import bounded, convert
from ros2_rfm_serving.types import (
    NO_ROWS,
    NO_VALUES,
    ActionChunk,
    Array,
    EncodedImage,
    ExecutionReport,
    ObservationRequest,
    Reply,
    RequestId,
    ServingStats,
)

T = TypeVar("T")
LITTLE_ENDIAN, BIG_ENDIAN = b"\x00\x01", b"\x00\x00"
HEADER = LITTLE_ENDIAN + b"\x00\x00"
"""Representation and options."""
NO_SEAL = bytes(16)
"""Seal of a message in a session without a key."""
NO_STAMP, STAMP = bytes(8), struct.Struct("<iI")
"""Stamp of a `std_msgs/Header`: seconds and nanoseconds. No code here reads a stamp of another machine."""
U32, TENSOR = struct.Struct("<I"), struct.Struct("<III")
EPOCH_TO_STAMP = (struct.Struct("<II4xQq"), struct.Struct("<IIQq"))
"""Layouts of session_epoch, episode, sequence, stamp_ns, from a multiple of 8 or 4 behind it."""
START_AND_DELAY = tuple(struct.Struct(code) for code in ("<?xH", "<?H", "<?xH2x", "<?H2x"))
"""Layouts of episode_start and inference_delay_steps, from 0 to 3 behind a multiple of 4 to the next such multiple."""
REPORT = struct.Struct("<H2xfff")
END_OF_CHUNK = (struct.Struct("<H2xQH2xffH2xIfffH2xff16s"), struct.Struct("<H6xQH2xffH2xIfffH2xff16s"))
"""Layouts from execution_horizon to the seal, from a multiple of 8 or 4 behind it."""
EMULATED, DELAY = struct.Struct("<?"), struct.Struct("<H")


class Reader:
    """Reader of consecutive fields. Beyond the end it raises `struct.error` or `ValueError`, or `ended_well` returns False."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, len(HEADER)

    def skip(self, size: int) -> None:
        self._at += size

    def ended_well(self) -> bool:
        return self._at <= len(self._data)

    def fields(self, layout: struct.Struct, alignment: int = 4) -> tuple[Any, ...]:
        begin = -(-self._at // alignment) * alignment
        self._at = begin + layout.size
        return layout.unpack_from(self._data, begin)

    def count(self) -> int:
        begin = (self._at + 3) & -4
        self._at = begin + 4
        value: int = U32.unpack_from(self._data, begin)[0]
        return value

    def text(self) -> str:
        begin = ((self._at + 3) & -4) + 4
        self._at = end = begin + U32.unpack_from(self._data, begin - 4)[0]
        return self._data[begin : end - 1].decode("utf-8", "replace")

    def frame_id(self) -> str:
        self._at = ((self._at + 3) & -4) + STAMP.size
        return self.text()

    def octets(self) -> memoryview:
        size = self.count()
        begin = self._at
        self._at = begin + size
        return memoryview(self._data)[begin : begin + size]

    def floats(self) -> Array:
        size = self.count()
        begin = self._at
        self._at = begin + 4 * size
        return np.frombuffer(self._data, np.float32, size, begin) if size else NO_VALUES

    def end_of_chunk(self) -> tuple[Any, ...]:
        begin = (self._at + 3) & -4
        layout = END_OF_CHUNK[begin // 4 % 2]
        self._at = begin + layout.size
        return layout.unpack_from(self._data, begin)

    def tensor(self) -> Array:
        rows, columns = self.count(), self.count()
        values = self.floats()
        return convert.shaped(rows, columns, values) if rows or columns or values.size else NO_ROWS

    def id_and_stamp(self) -> tuple[RequestId, int]:
        robot, component = self.text(), self.text()
        begin = (self._at + 3) & -4
        layout = EPOCH_TO_STAMP[begin // 4 % 2]
        self._at = begin + layout.size
        epoch, episode, sequence, stamp_ns = layout.unpack_from(self._data, begin)
        return RequestId(robot=robot, component=component, session_epoch=epoch, episode=episode, sequence=sequence), stamp_ns


def _read(data: bytes, read: Callable[[Reader], T], message: type, convert_from: Callable[[Any], T]) -> T:
    """Read a message, by the generated code if necessary. Raises: `BadMessageError`."""
    if not data.startswith(LITTLE_ENDIAN):
        return convert_from(_generated(data, message))
    reader = Reader(data)
    try:
        result = read(reader)
    except (struct.error, ValueError) as error:
        raise BadMessageError("bad_message", f"{len(data)} bytes are no {message.__name__}") from error
    if not reader.ended_well():
        raise BadMessageError("bad_message", f"{message.__name__} ends after {len(data)} bytes, in the middle of a field")
    return result


def ends_in_itself(data: bytes) -> bool:
    """Return False for data shorter than its header and the padding that this announces: Fast CDR would read past its end."""
    return len(data) >= len(HEADER) and len(data) >= len(HEADER) + (data[3] & 3)


def _generated(data: bytes, message: type) -> Any:
    """Read big-endian bytes by the generated code. Raises: `BadMessageError`."""
    if not data.startswith(BIG_ENDIAN) or not ends_in_itself(data):
        raise BadMessageError("bad_message", "it is not in plain CDR")
    try:
        return deserialize_message(data, message)
    except RuntimeError as error:  # RMW_RET_BAD_ALLOC, MemoryError and the like are raised as this
        raise BadMessageError("bad_message", f"it cannot be read as {message.__name__}") from error


def observation_from(data: bytes) -> ObservationRequest:
    """Read an observation. Raises: `BadMessageError`."""
    return _read(data, _observation, msg.Observation, convert.observation_from)


def _observation(read: Reader) -> ObservationRequest:
    read.frame_id()
    request, stamp_ns = read.id_and_stamp()
    found = ObservationRequest(
        id=request,
        stamp_ns=stamp_ns,
        instruction=read.text(),
        state=read.floats(),
        images=tuple([_image(read) for _ in range(read.count())]),
        episode_start=read.fields(EMULATED, 1)[0],
        inference_delay_steps=read.fields(DELAY, 2)[0],
        prefix_model=read.tensor(),
        prefix_robot=read.tensor(),
        report=_report(*read.fields(REPORT)),
    )
    read.skip(len(NO_SEAL))
    return found


def _image(read: Reader) -> EncodedImage:
    return EncodedImage(camera=read.frame_id(), format=read.text(), data=read.octets())


def _report(executed_steps: int, executing_s: float, remaining_s: float, last_wait_s: float) -> ExecutionReport:
    return ExecutionReport(executed_steps=executed_steps, executing_s=executing_s, remaining_s=remaining_s, last_wait_s=last_wait_s)


def chunk_from(data: bytes) -> ActionChunk:
    """Read a chunk. Raises: `BadMessageError`."""
    return _read(data, _chunk, msg.ActionChunk, convert.chunk_from)


def _chunk(read: Reader) -> ActionChunk:
    server = read.frame_id()
    request, stamp_ns = read.id_and_stamp()
    model_hash, emulated = read.text(), read.fields(EMULATED, 1)[0]
    names = tuple([read.text() for _ in range(read.count())])
    chunk_model, chunk_robot, confidence = read.tensor(), read.tensor(), read.floats()
    execution_horizon, ended_with, inference_delay_steps, *served, _ = read.end_of_chunk()
    return convert.checked_chunk(
        ActionChunk(
            id=request,
            stamp_ns=stamp_ns,
            server=server,
            model_hash=model_hash,
            action_names=names,
            chunk_model=chunk_model,
            chunk_robot=chunk_robot,
            confidence=confidence,
            execution_horizon=execution_horizon,
            ended_with=ended_with or None,
            inference_delay_steps=inference_delay_steps,
            served=ServingStats(*served),
            emulated=emulated,
        )
    )


def observation_to(request: ObservationRequest, ros_ns: int = 0) -> bytes:
    """Serialize an observation. ros_ns: ROS time now, for the header."""
    images: list[bytes | memoryview] = []
    size = 0
    for image in request.images:
        before = _padding(size) + NO_STAMP + _texts(image.camera, image.format) + U32.pack(len(image.data))
        images += (before, image.data)
        size += len(before) + len(image.data)
    report = request.report
    return b"".join(
        (
            _start(request.id.robot, request.id, request.stamp_ns, ros_ns),
            _texts(request.instruction),
            _floats(request.state),
            U32.pack(len(request.images)),
            *images,
            START_AND_DELAY[size % 4].pack(request.episode_start, request.inference_delay_steps),
            _tensor(request.prefix_model),
            _tensor(request.prefix_robot),
            REPORT.pack(min(report.executed_steps, 0xFFFF), report.executing_s, report.remaining_s, report.last_wait_s),
            NO_SEAL,
        )
    )


def reply_to(reply: Reply, ros_ns: int = 0) -> bytes:
    """Serialize a reply: a chunk by this module, the rarer others by the generated code; no byte follows the seal.
    ros_ns: ROS time now, for the header."""
    if isinstance(reply, ActionChunk):
        return _chunk_to(reply, ros_ns)
    message = convert.reply_to(reply)
    message.header.stamp.sec, message.header.stamp.nanosec = divmod(ros_ns, 1_000_000_000)
    data: bytes = serialize_message(message)
    return data[: bounded.check(data, type(message))]


def _chunk_to(chunk: ActionChunk, ros_ns: int) -> bytes:
    served = chunk.served
    parts = (
        _start(chunk.server, chunk.id, chunk.stamp_ns, ros_ns),
        _model(chunk.model_hash, chunk.emulated, chunk.action_names),
        _tensor(chunk.chunk_model),
        _tensor(chunk.chunk_robot),
        _floats(chunk.confidence),
    )
    end = END_OF_CHUNK[sum(map(len, parts)) // 4 % 2].pack(
        chunk.execution_horizon,
        chunk.ended_with or 0,
        chunk.inference_delay_steps,
        served.queue_wait_s,
        served.inference_s,
        served.batch_size,
        served.superseded,
        served.server_load,
        served.perception_s,
        served.solver_s,
        min(served.solver_steps, 0xFFFF),
        served.excess_delay_s,
        served.decoding_s,
        NO_SEAL,
    )
    return b"".join((*parts, end))


def _start(frame_id: str, request: RequestId, stamp_ns: int, ros_ns: int) -> bytes:
    """Return the beginning of both messages, to a multiple of 8."""
    before = HEADER + STAMP.pack(*divmod(ros_ns, 1_000_000_000)) + _texts(frame_id, request.robot, request.component)
    layout = EPOCH_TO_STAMP[len(before) // 4 % 2]
    return before + layout.pack(request.session_epoch, request.episode, request.sequence, stamp_ns)


@functools.lru_cache(maxsize=1024)
def _texts(*texts: str) -> bytes:
    """Return strings from a multiple of 4 to a multiple of 4."""
    data = b""
    for text in texts:
        encoded = text.encode()
        data += U32.pack(len(encoded) + 1) + encoded + b"\x00"
        data += _padding(len(data))
    return data


@functools.lru_cache(maxsize=64)
def _model(model_hash: str, emulated: bool, names: tuple[str, ...]) -> bytes:
    """Return the part that is constant for a model's chunks, from a multiple of 4 to a multiple of 4."""
    encoded = model_hash.encode() + b"\x00"
    data = U32.pack(len(encoded)) + encoded + EMULATED.pack(emulated)
    return data + _padding(len(data)) + U32.pack(len(names)) + _texts(*names)


def _tensor(values: Array) -> bytes:
    return TENSOR.pack(*values.shape, values.size) + np.ascontiguousarray(values, np.float32).tobytes()


def _floats(values: Array) -> bytes:
    return U32.pack(values.size) + np.ascontiguousarray(values, np.float32).tobytes()


def _padding(size: int) -> bytes:
    return bytes(-size % 4)
