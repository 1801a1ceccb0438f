"""Messages and nouns: round trips, hostile values, and how often bulk data is copied."""

from __future__ import annotations

import array
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from rclpy.serialization import deserialize_message, serialize_message
from rfm_serving import msg, srv

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.ros.wire import convert, session_messages
from ros2_rfm_serving.types import (
    ActionChunk,
    Conditioning,
    EncodedImage,
    ExecutionReport,
    Guidance,
    HorizonRequest,
    JudgeVerdict,
    ModelContract,
    ObservationRequest,
    OutputKind,
    PipelineConfig,
    PrefixSchedule,
    RequestId,
    ServingStats,
    SessionRequest,
    SubgoalPlan,
)
from test.unit.fakes import chunk, observation, schedule

IDS = st.builds(
    RequestId,
    robot=st.text("abc_", max_size=8),
    component=st.sampled_from(["system1", "monitor"]),
    session_epoch=st.integers(0, 2**32 - 1),
    episode=st.integers(0, 2**32 - 1),
    sequence=st.integers(0, 2**64 - 1),
)
FLOATS = st.floats(width=32)
VECTORS = npst.arrays(np.float32, st.integers(0, 40), elements=FLOATS)
MATRICES = npst.arrays(np.float32, st.tuples(st.integers(0, 8), st.integers(0, 5)), elements=FLOATS)
IMAGES = st.builds(EncodedImage, camera=st.text("ab", max_size=3), format=st.just("jpeg"), data=st.binary(max_size=50))
SERVED = st.builds(
    ServingStats,
    queue_wait_s=FLOATS,
    inference_s=FLOATS,
    batch_size=st.integers(0, 65535),
    superseded=st.integers(0, 2**32 - 1),
    server_load=FLOATS,
    perception_s=FLOATS,
    solver_s=FLOATS,
    solver_steps=st.integers(0, 2**16 - 1),
    excess_delay_s=FLOATS,
    decoding_s=FLOATS,
)


def over_the_wire(message):  # type: ignore[no-untyped-def]
    return deserialize_message(serialize_message(message), type(message))


def same(a: object, b: object) -> bool:
    """Equal field by field; NaN equals NaN; an empty matrix has no shape left."""
    for name in a.__dataclass_fields__:  # type: ignore[attr-defined]
        value, other = getattr(a, name), getattr(b, name)
        if isinstance(value, np.ndarray):
            if value.size or other.size:
                np.testing.assert_array_equal(value, other)
        elif isinstance(value, float):
            assert value == other or (math.isnan(value) and math.isnan(other)), name
        elif hasattr(value, "__dataclass_fields__"):
            assert same(value, other)
        elif name == "images":
            assert [(i.camera, i.format, bytes(i.data)) for i in value] == [(i.camera, i.format, bytes(i.data)) for i in other]
        else:
            assert value == other, name
    return True


@given(
    st.builds(
        ObservationRequest,
        id=IDS,
        stamp_ns=st.integers(-(2**63), 2**63 - 1),
        instruction=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
        state=VECTORS,
        images=st.lists(IMAGES, max_size=3).map(tuple),
        inference_delay_steps=st.integers(0, 65535),
        prefix_model=MATRICES,
        prefix_robot=MATRICES,
        report=st.builds(ExecutionReport, executed_steps=st.integers(0, 65535), remaining_s=FLOATS, last_wait_s=FLOATS),
        episode_start=st.booleans(),
    )
)
def test_an_observation_survives_the_wire(request: ObservationRequest) -> None:
    assert same(request, convert.observation_from(over_the_wire(convert.observation_to(request))))


@given(IDS, MATRICES, SERVED, st.booleans())
def test_a_chunk_survives_the_wire(request: RequestId, values: np.ndarray, served: ServingStats, emulated: bool) -> None:
    chunk = ActionChunk(
        id=request,
        stamp_ns=5,
        server="s",
        model_hash="h",
        action_names=("a", "b"),
        chunk_model=values,
        chunk_robot=values + 1,
        confidence=np.ones(len(values), np.float32),
        execution_horizon=3,
        inference_delay_steps=2,
        served=served,
        emulated=emulated,
    )
    assert same(chunk, convert.chunk_from(over_the_wire(convert.reply_to(chunk))))


@given(IDS, SERVED, FLOATS)
def test_a_verdict_survives_the_wire(request: RequestId, served: ServingStats, score: float) -> None:
    verdict = JudgeVerdict(
        id=request, stamp_ns=5, server="s", model_hash="h", verdict="done", score=score, text="why", served=served
    )
    assert same(verdict, convert.verdict_from(over_the_wire(convert.reply_to(verdict))))


@given(IDS, SERVED, st.lists(st.text("abc ", max_size=5), max_size=3))
def test_a_plan_survives_the_wire_and_tells_judges_its_text(request: RequestId, served: ServingStats, subgoals: list[str]) -> None:
    plan = SubgoalPlan(id=request, stamp_ns=5, server="s", model_hash="h", subgoals=tuple(subgoals), text="why", served=served)
    assert same(plan, convert.plan_from(over_the_wire(convert.reply_to(plan))))
    told = over_the_wire(convert.reply_to(convert.as_verdict(plan)))
    assert (told.text, told.verdict) == ("why", "") and math.isnan(told.score)


def test_a_schedule_survives_the_wire_and_an_unusable_rate_is_left_out() -> None:
    sent = schedule(rate_hz=2.0)
    got = convert.schedule_from(over_the_wire(convert.schedule_to(sent, "f")))
    assert got.routes == sent.routes and got.epoch == sent.epoch and got.placements[0].model == "fake"
    unlimited = schedule(rate_hz=float("inf"))
    assert convert.schedule_from(convert.schedule_to(unlimited, "f")).routes == unlimited.routes
    for rate in (0.0, -1.0, float("nan")):
        assert convert.schedule_from(convert.schedule_to(schedule(rate_hz=rate), "f")).routes == ()


@pytest.mark.parametrize("change", [{"server": "a b"}, {"server": ""}])
def test_a_schedule_with_impossible_names_is_refused(change: dict[str, str]) -> None:
    with pytest.raises(BadMessageError):
        convert.schedule_from(convert.schedule_to(schedule(**change), "f"))


CONTRACTS = st.builds(
    ModelContract,
    model=st.just("m"),
    model_hash=st.just("h"),
    output=st.sampled_from(OutputKind),
    cameras=st.just(("a",)),
    state_size=st.integers(0, 2**32 - 1),
    chunk_length=st.integers(0, 65535),
    max_inference_delay_steps=st.integers(0, 65535),
    conditionings=st.lists(st.sampled_from(Conditioning), min_size=1, unique=True).map(tuple),
    emulated=st.booleans(),
    pipelines=st.booleans(),
    max_num_steps=st.integers(0, 2**16 - 1),
)


@given(CONTRACTS)
def test_a_contract_survives_the_wire(contract: ModelContract) -> None:
    answer = over_the_wire(session_messages.contract_to(contract, srv.OpenSession.Response()))
    assert session_messages.grant_from(answer).contract == contract


@given(
    st.builds(
        SessionRequest,
        robot=st.just("r"),
        component=st.just("c"),
        action_names=st.just(("x",)),
        control_rate_hz=st.floats(0, width=32, allow_nan=False),
        conditioning=st.sampled_from(Conditioning),
        guidance=st.builds(
            Guidance,
            schedule=st.sampled_from(PrefixSchedule),
            max_weight=st.floats(-10, 100, width=32).filter(bool),
            execution_horizon=st.integers(1, 65535),
            true_jacobian=st.booleans(),
            zero_padded=st.booleans(),
        ),
        horizon=st.builds(
            HorizonRequest,
            policy=st.sampled_from(["", "static"]),
            steps=st.integers(0, 65535),
            min_steps=st.integers(1, 65535),
            threshold=st.floats(-0.5, 8, width=32).filter(bool),
        ),
        num_steps=st.integers(0, 2**16 - 1),
        pipelining=st.none()
        | st.builds(
            PipelineConfig,
            pp_perception=st.integers(1, 255),
            pp_generation=st.integers(0, 255),
            alpha=st.floats(-8, 8, width=32),
            fetch_offset=st.integers(-128, 127),
        ),
    )
)
def test_a_session_request_survives_the_wire(request: SessionRequest) -> None:
    sent = over_the_wire(session_messages.session_request_to(request))
    assert session_messages.session_request_from(sent) == request


@pytest.mark.parametrize("half", [{"pp_generation": 2}, {"pp_alpha": 1.0}, {"fetch_offset": -1}])
def test_half_of_a_pipelined_session_is_none(half: dict[str, Any]) -> None:
    with pytest.raises(BadMessageError, match="pp_perception is 0, not pipelined"):
        session_messages.session_request_from(srv.OpenSession.Request(robot="r", component="c", **half))


def test_a_chunk_that_ended_before_it_began_is_refused() -> None:
    answer = chunk(observation(5, sequence=7))
    assert convert.chunk_from(convert.reply_to(replace(answer, ended_with=9))).ended_with == 9
    with pytest.raises(BadMessageError, match="an answer to request 7 cannot end with 6") as told:
        convert.chunk_from(convert.reply_to(replace(answer, ended_with=6)))
    assert told.value.kind == "wrong_context"


def test_empty_words_and_zeros_of_a_session_request_mean_the_defaults() -> None:
    request = session_messages.session_request_from(srv.OpenSession.Request(robot="r", component="c"))
    assert request.conditioning is Conditioning.NONE and request.guidance == Guidance()
    assert session_messages.grant_from(srv.OpenSession.Response(output="plan")).contract.conditionings == (Conditioning.NONE,)


@pytest.mark.parametrize("change", [{"conditioning": "magic"}, {"guidance_schedule": "Linear"}])
def test_unknown_words_of_a_session_request_are_refused(change: dict[str, str]) -> None:
    with pytest.raises(BadMessageError, match="is none of") as error:
        session_messages.session_request_from(srv.OpenSession.Request(robot="r", component="c", **change))
    assert error.value.kind == "bad_session"


@pytest.mark.parametrize("change", [{"output": "song"}, {"output": ""}, {"output": "plan", "conditionings": ["none", "magic"]}])
def test_unknown_words_of_a_grant_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(BadMessageError, match="is none of"):
        session_messages.grant_from(srv.OpenSession.Response(**change))


@pytest.mark.parametrize(
    ("rows", "columns", "size"),
    [(2, 2, 3), (0, 0, 1), (1, 0, 5), (2**31, 2**31, 0), (2**32 - 1, 1, 7), (1, 2 << 20, 2 << 20), (2**32 - 1, 0, 0)],
)
def test_a_tensor_that_lies_about_its_shape_is_refused(rows: int, columns: int, size: int) -> None:
    message = msg.Tensor(rows=rows, columns=columns, data=array.array("f", [0.0]) * size)
    with pytest.raises(BadMessageError) as error:
        convert.tensor_from(message)
    assert error.value.kind == "bad_shape"


def test_confidences_must_match_the_rows() -> None:
    message = msg.ActionChunk(confidence=[1.0, 1.0])
    with pytest.raises(BadMessageError):
        convert.chunk_from(message)


def test_reading_copies_no_bulk_data() -> None:
    image = array.array("B", bytes(1000))
    message = msg.Observation(state=array.array("f", [1.0, 2.0]))
    message.images = [convert.image_to(EncodedImage(camera="a", format="jpeg", data=memoryview(image)))]
    assert message.images[0].data is image, "an image that came as a message leaves without a copy"
    request = convert.observation_from(message)
    assert isinstance(request.images[0].data, memoryview) and request.images[0].data.obj is message.images[0].data
    assert not request.state.flags.owndata
