"""Observation and ActionChunk as bytes: the same as the generated code's, and no bytes do harm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rclpy.serialization import deserialize_message, serialize_message
from rfm_serving import msg

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.wire import cdr, convert
from ros2_rfm_serving.types import (
    ActionChunk,
    EncodedImage,
    ExecutionReport,
    ObservationRequest,
    RequestId,
    ServingStats,
    SubgoalPlan,
)
from test.ros.test_convert import FLOATS, IDS, IMAGES, MATRICES, SERVED, VECTORS, same

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
OBSERVATIONS = st.builds(
    ObservationRequest,
    id=IDS,
    stamp_ns=st.integers(-(2**63), 2**63 - 1),
    instruction=WORDS,
    state=VECTORS,
    images=st.lists(IMAGES, max_size=3).map(tuple),
    inference_delay_steps=st.integers(0, 65535),
    prefix_model=MATRICES,
    prefix_robot=MATRICES,
    report=st.builds(
        ExecutionReport, executed_steps=st.integers(0, 65535), executing_s=FLOATS, remaining_s=FLOATS, last_wait_s=FLOATS
    ),
    episode_start=st.booleans(),
)
CHUNKS = MATRICES.flatmap(
    lambda values: st.builds(
        ActionChunk,
        id=IDS,
        stamp_ns=st.integers(-(2**63), 2**63 - 1),
        server=WORDS,
        model_hash=WORDS,
        action_names=st.lists(WORDS, max_size=4).map(tuple),
        chunk_model=st.just(values),
        chunk_robot=st.just(-values),
        confidence=st.sampled_from([np.ones(len(values), np.float32), np.zeros(0, np.float32)]),
        execution_horizon=st.integers(0, 65535),
        inference_delay_steps=st.integers(0, 65535),
        served=SERVED,
        emulated=st.booleans(),
        ended_with=st.none() | st.just(2**64 - 1),
    )
)
OBSERVATION = ObservationRequest(
    id=RequestId(robot="arm_1", component="system1", session_epoch=3, episode=2, sequence=9),
    stamp_ns=77,
    instruction="pick",
    state=np.arange(5, dtype=np.float32),
    images=(EncodedImage(camera="front", format="jpeg", data=b"12345"),),
    prefix_model=np.ones((2, 3), np.float32),
)


@given(OBSERVATIONS)
def test_an_observation_is_what_the_generated_code_makes_of_it(request: ObservationRequest) -> None:
    assert same(request, convert.observation_from(deserialize_message(cdr.observation_to(request), msg.Observation)))
    assert same(request, cdr.observation_from(serialize_message(convert.observation_to(request))))


@given(CHUNKS)
def test_a_chunk_is_what_the_generated_code_makes_of_it(chunk: ActionChunk) -> None:
    assert same(chunk, convert.chunk_from(deserialize_message(cdr.reply_to(chunk), msg.ActionChunk)))
    assert same(chunk, cdr.chunk_from(serialize_message(convert.reply_to(chunk))))


def test_other_replies_go_through_the_generated_code() -> None:
    served = ServingStats(queue_wait_s=0.0, inference_s=0.0, batch_size=1, superseded=0, server_load=0.0)
    plan = SubgoalPlan(id=OBSERVATION.id, stamp_ns=5, server="s", model_hash="", subgoals=("reach",), text="reach", served=served)
    assert same(plan, convert.plan_from(deserialize_message(cdr.reply_to(plan), msg.Plan)))


def test_reading_shares_memory_with_the_bytes() -> None:
    data = cdr.observation_to(OBSERVATION)
    read = cdr.observation_from(data)
    assert isinstance(read.images[0].data, memoryview) and read.images[0].data.obj is data
    assert np.shares_memory(read.state, np.frombuffer(data, np.uint8))


def test_what_ends_too_early_is_refused() -> None:
    data = cdr.observation_to(OBSERVATION)
    for size in range(len(data)):
        with pytest.raises(BadMessageError) as refusal:
            cdr.observation_from(data[:size])
        assert refusal.value.kind == "bad_message"


@pytest.mark.parametrize("header", ["00000001", "00000003", "0000", "00060001", "00070000", "00020000", "ffff0000"])
@pytest.mark.parametrize("read", [cdr.observation_from, cdr.chunk_from])
def test_only_plain_cdr_with_its_padding_goes_to_the_generated_code(header: str, read: Any) -> None:
    with pytest.raises(BadMessageError, match="plain CDR"):
        read(bytes.fromhex(header))


@given(st.data())
def test_damaged_bytes_are_read_or_refused(data: st.DataObject) -> None:
    message = bytearray(cdr.observation_to(OBSERVATION))
    for _ in range(data.draw(st.integers(1, 6))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    try:
        cdr.observation_from(bytes(message))
    except BadMessageError as error:
        assert error.kind in ("bad_message", "bad_shape")


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_read_or_refused(tail: bytes, little_endian: bool) -> None:
    data = (cdr.HEADER if little_endian else b"") + tail
    for read in (cdr.observation_from, cdr.chunk_from):
        try:
            read(data)
        except BadMessageError as error:
            assert error.kind in ("bad_message", "bad_shape")
