"""The two messages of every request, `Observation` and `ActionChunk`, as the bytes that travel (little-endian XCDR1).

Raw publishers and subscriptions take these: the generated conversion takes four times as long and holds the interpreter's lock
meanwhile (docs/serving.md). Reading shares memory with the bytes; writing copies bulk data once. test/ros/test_cdr.py holds both
against the generated code; bytes of another encoding go through that.
"""

from __future__ import annotations

import functools
import struct
from typing import Any

import numpy as np
from rclpy.serialization import deserialize_message, serialize_message
from rfm_serving import msg

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros import convert
from ros2_rfm_serving.types import Array, Chunk, EncodedImage, ExecutionReport, ObservationRequest, Reply, RequestId, Served

LITTLE_ENDIAN, BIG_ENDIAN = b"\x00\x01", b"\x00\x00"
HEADER = LITTLE_ENDIAN + b"\x00\x00"
"""Representation and options; alignment counts from behind it."""
STAMP = bytes(8)
"""Of a `std_msgs/Header` that nobody reads."""
BOOL, U16, U32, I64, U64 = (struct.Struct(f"<{code}") for code in "?HIqQ")
DELAYS, TWO_U32 = struct.Struct("<HH"), struct.Struct("<II")
REPORT = struct.Struct("<H2xfff")
SERVED = struct.Struct("<ffH2xIf")
"""`Served`, from a multiple of 4."""


class Reader:
    """Fields one after the other. What reaches beyond the end raises `BadMessageError`."""

    __slots__ = ("_at", "_data", "_view")

    def __init__(self, data: bytes) -> None:
        self._data, self._view, self._at = data, memoryview(data), len(HEADER)

    def skip(self, size: int, alignment: int = 1) -> int:
        """Where `size` bytes at a multiple of `alignment` begin; the next field comes after them."""
        begin = self._at + (len(HEADER) - self._at) % alignment
        self._at = begin + size
        if self._at > len(self._data):
            raise BadMessageError("bad_message", f"it ends after {len(self._data)} bytes, a field reaches to {self._at}")
        return begin

    def number(self, layout: struct.Struct) -> int:
        value: int = layout.unpack_from(self._data, self.skip(layout.size, layout.size))[0]
        return value

    def text(self) -> str:
        size = self.number(U32)
        begin = self.skip(size)
        return self._data[begin : begin + size - 1].decode(errors="replace") if size else ""

    def texts(self) -> tuple[str, ...]:
        return tuple([self.text() for _ in range(self.number(U32))])

    def octets(self) -> memoryview:
        size = self.number(U32)
        begin = self.skip(size)
        return self._view[begin : begin + size]

    def floats(self) -> Array:
        size = self.number(U32)
        return np.frombuffer(self._data, np.float32, size, self.skip(4 * size, 4)) if size else convert.floats(())

    def fields(self, layout: struct.Struct, alignment: int) -> tuple[int | float, ...]:
        return layout.unpack_from(self._data, self.skip(layout.size, alignment))

    def frame_id(self) -> str:
        self.skip(len(STAMP), 4)
        return self.text()

    def id(self) -> RequestId:
        return RequestId(
            robot=self.text(),
            component=self.text(),
            session_epoch=self.number(U32),
            episode=self.number(U32),
            sequence=self.number(U64),
        )

    def tensor(self) -> Array:
        rows, columns = self.number(U32), self.number(U32)
        return convert.shaped(rows, columns, self.floats())


class Writer:
    """Fields one after the other; `message()` joins them, the one copy of bulk data."""

    __slots__ = ("_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = [HEADER]
        self._size = 0

    def put(self, data: bytes | memoryview, alignment: int = 1) -> None:
        if padding := -self._size % alignment:
            self._parts.append(bytes(padding))
        self._parts.append(data)
        self._size += padding + len(data)

    def number(self, layout: struct.Struct, value: int) -> None:
        self.put(layout.pack(value), layout.size)

    def text(self, text: str) -> None:
        data = text.encode()
        self.put(b"%b%b\x00" % (U32.pack(len(data) + 1), data), 4)

    def octets(self, data: bytes | memoryview) -> None:
        self.number(U32, len(data))
        self.put(data)

    def floats(self, values: Array) -> None:
        self.put(U32.pack(values.size) + np.ascontiguousarray(values, np.float32).tobytes(), 4)

    def frame_id(self, name: str) -> None:
        self.put(STAMP, 4)
        self.text(name)

    def id(self, request: RequestId) -> None:
        self.text(request.robot)
        self.text(request.component)
        self.put(TWO_U32.pack(request.session_epoch, request.episode), 4)
        self.number(U64, request.sequence)

    def tensor(self, values: Array) -> None:
        self.put(TWO_U32.pack(*values.shape), 4)
        self.floats(values)

    def message(self) -> bytes:
        return b"".join(self._parts)


def observation_from(data: bytes) -> ObservationRequest:
    """Raises: `BadMessageError`."""
    if not data.startswith(LITTLE_ENDIAN):
        return convert.observation_from(_generated(data, msg.Observation))
    read = Reader(data)
    read.frame_id()
    return ObservationRequest(
        id=read.id(),
        stamp_ns=read.number(I64),
        instruction=read.text(),
        state=read.floats(),
        images=tuple([_image(read) for _ in range(read.number(U32))]),
        episode_start=bool(read.number(BOOL)),
        inference_delay_steps=read.number(U16),
        prefix_model=read.tensor(),
        prefix_robot=read.tensor(),
        report=_report(read),
    )


def _image(read: Reader) -> EncodedImage:
    return EncodedImage(camera=read.frame_id(), format=read.text(), data=read.octets())


def _report(read: Reader) -> ExecutionReport:
    executed_steps, executing_s, remaining_s, last_wait_s = read.fields(REPORT, 4)
    return ExecutionReport(
        executed_steps=int(executed_steps), executing_s=executing_s, remaining_s=remaining_s, last_wait_s=last_wait_s
    )


def observation_to(request: ObservationRequest) -> bytes:
    write = Writer()
    write.frame_id(request.id.robot)
    write.id(request.id)
    write.number(I64, request.stamp_ns)
    write.text(request.instruction)
    write.floats(request.state)
    write.number(U32, len(request.images))
    for image in request.images:
        write.frame_id(image.camera)
        write.text(image.format)
        write.octets(image.data)
    write.number(BOOL, request.episode_start)
    write.number(U16, request.inference_delay_steps)
    write.tensor(request.prefix_model)
    write.tensor(request.prefix_robot)
    report = request.report
    steps = min(report.executed_steps, 0xFFFF)
    write.put(REPORT.pack(steps, report.executing_s, report.remaining_s, report.last_wait_s), 4)
    return write.message()


def chunk_from(data: bytes) -> Chunk:
    """Raises: `BadMessageError`."""
    if not data.startswith(LITTLE_ENDIAN):
        return convert.chunk_from(_generated(data, msg.ActionChunk))
    read = Reader(data)
    return convert.checked_chunk(
        Chunk(
            server=read.frame_id(),
            id=read.id(),
            stamp_ns=read.number(I64),
            model_hash=read.text(),
            emulated=bool(read.number(BOOL)),
            action_names=read.texts(),
            chunk_model=read.tensor(),
            chunk_robot=read.tensor(),
            confidence=read.floats(),
            execution_horizon=read.number(U16),
            inference_delay_steps=read.number(U16),
            served=_served(read),
        )
    )


def _served(read: Reader) -> Served:
    queue_wait_s, inference_s, batch_size, superseded, server_load = read.fields(SERVED, 4)
    return Served(
        queue_wait_s=queue_wait_s,
        inference_s=inference_s,
        batch_size=int(batch_size),
        superseded=int(superseded),
        server_load=server_load,
    )


def reply_to(reply: Reply) -> bytes:
    """A chunk by hand, the rare others by the generated code."""
    if isinstance(reply, Chunk):
        return _chunk_to(reply)
    data: bytes = serialize_message(convert.reply_to(reply))
    return data


def _chunk_to(chunk: Chunk) -> bytes:
    write = Writer()
    write.frame_id(chunk.server)
    write.id(chunk.id)
    write.number(I64, chunk.stamp_ns)
    write.text(chunk.model_hash)
    write.number(BOOL, chunk.emulated)
    write.put(_names(chunk.action_names), 4)
    write.tensor(chunk.chunk_model)
    write.tensor(chunk.chunk_robot)
    write.floats(chunk.confidence)
    write.put(DELAYS.pack(chunk.execution_horizon, chunk.inference_delay_steps), 2)
    served = chunk.served
    write.put(SERVED.pack(served.queue_wait_s, served.inference_s, served.batch_size, served.superseded, served.server_load), 4)
    return write.message()


@functools.lru_cache(maxsize=64)
def _names(names: tuple[str, ...]) -> bytes:
    """The same in every chunk of a model. A string[] field, from a multiple of 4."""
    write = Writer()
    write.number(U32, len(names))
    for name in names:
        write.text(name)
    return write.message()[len(HEADER) :]


def ends_in_itself(data: bytes) -> bool:
    """False: it is shorter than its header and the padding that its header announces. Fast CDR would read past its end."""
    return len(data) >= len(HEADER) and len(data) >= len(HEADER) + (data[3] & 3)


def _generated(data: bytes, kind: type) -> Any:
    """Big-endian bytes. Raises: `BadMessageError`."""
    if not data.startswith(BIG_ENDIAN) or not ends_in_itself(data):
        raise BadMessageError("bad_message", "it is not in plain CDR")
    try:
        return deserialize_message(data, kind)
    except RuntimeError as error:  # RMW_RET_BAD_ALLOC, MemoryError and the like come as this
        raise BadMessageError("bad_message", f"it cannot be read as {kind.__name__}") from error
