"""The openpi protocol without sockets: what a message may be, what it means, and what it never does."""

from __future__ import annotations

import pickle
from typing import Any

import msgpack
import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from openpi_client import msgpack_numpy

from ros2_rfm_serving import wire
from ros2_rfm_serving.engines.emulated import EmulatedEngine, EmulatedSpec
from ros2_rfm_serving.errors import BadMessageError, ContractError, RfmError
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.server.openpi.protocol import OpenpiClient
from ros2_rfm_serving.types import Conditioning, ObservationRequest, OutputKind, PrefixSchedule

ACTIONS = ("x", "y", "grip")
PIXELS = np.arange(8 * 6 * 3, dtype=np.uint8).reshape(8, 6, 3)


def server_of(**changes: Any) -> ModelServer:
    spec = {"model": "m", "action_names": ACTIONS, "cameras": ("front", "side"), "state_size": 4, "chunk_length": 8, **changes}
    return ModelServer(ServerConfig(name="s"), EmulatedEngine(EmulatedSpec(**spec), lambda size: 0.0, lambda seconds: None))


@pytest.fixture
def server() -> ModelServer:
    return server_of()


@pytest.fixture
def client(server: ModelServer) -> OpenpiClient:
    return OpenpiClient(server, "ws_1")


def observation(**changes: Any) -> dict[str, Any]:
    return {
        "prompt": "pick",
        "observation/state": np.arange(4.0),
        "observation/images/front": PIXELS,
        "observation/side": PIXELS.transpose(2, 0, 1),
        **changes,
    }


def ask(client: OpenpiClient, message: Any) -> ObservationRequest:
    asked = client.ask(msgpack_numpy.packb(message))
    assert asked is not None
    return asked


def serve(server: ModelServer, asked: ObservationRequest) -> Any:
    server.submit(asked, 0.0)
    return server.loop.step(lambda: 0.0)[0]


def refusal(client: OpenpiClient, message: Any) -> tuple[str, str]:
    with pytest.raises(BadMessageError) as caught:
        client.ask(message if isinstance(message, bytes) else msgpack_numpy.packb(message))
    return caught.value.kind, str(caught.value)


def test_one_round_trip_as_the_real_client_sees_it(server: ModelServer, client: OpenpiClient) -> None:
    asked = ask(client, observation())
    assert asked.instruction == "pick" and asked.state.tolist() == [0, 1, 2, 3]
    assert {image.camera: (image.height_px, image.width_px) for image in asked.images} == {"front": (8, 6), "side": (8, 6)}
    assert all(bytes(image.data) == PIXELS.tobytes() for image in asked.images)
    told = msgpack_numpy.unpackb(wire.packer().pack(client.answer(serve(server, asked))))
    assert told["actions"].shape == (8, 3) and told["actions"].dtype == np.float32
    assert told["server_timing"]["batch_size"] == 1 and "actions_model" not in told


@pytest.mark.parametrize(
    "message",
    [
        {"state": [0, 1, 2, 3], "images": {"front": PIXELS, "side": PIXELS}},
        {"observation": {"state": np.arange(4), "images": {"front": PIXELS, "side": PIXELS}}},
        {"observation.state": np.arange(4), "observation.images.front": PIXELS, "observation.images.side": PIXELS},
        {"observation/state": np.arange(4.0), "images/front": PIXELS, "side": PIXELS},
    ],
)
def test_keys_as_openpi_lerobot_and_libero_write_them(client: OpenpiClient, message: dict[str, Any]) -> None:
    asked = ask(client, message)
    assert asked.state.tolist() == [0, 1, 2, 3] and sorted(image.camera for image in asked.images) == ["front", "side"]


def test_a_jpeg_travels_as_its_bytes(server: ModelServer, client: OpenpiClient) -> None:
    jpeg = simplejpeg.encode_jpeg(np.zeros((16, 16, 3), np.uint8))
    asked = ask(client, observation(**{"observation/side": jpeg, "observation/images/front": np.frombuffer(jpeg, np.uint8)}))
    assert [image.format for image in asked.images] == ["jpeg", "jpeg"]
    assert serve(server, asked).chunk_robot.shape == (8, 3)


def test_other_names_are_mapped_and_states_joined_in_the_order_of_the_map(server: ModelServer) -> None:
    names = {
        "observation/joint_position": "state",
        "observation/gripper_position": "state",
        "observation/image": "front",
        "base": "",
    }
    client = OpenpiClient(server, "ws_1", names)
    message = {
        "observation/gripper_position": np.float32(9),
        "observation/joint_position": np.arange(3),
        "observation/image": PIXELS,
        "side": PIXELS,
        "base": 1,
    }
    assert ask(client, message).state.tolist() == [0, 1, 2, 9]


def test_missing_and_unknown_keys_are_named_with_what_the_model_takes(client: OpenpiClient) -> None:
    message = observation(wrist=PIXELS)
    del message["observation/side"]
    kind, said = refusal(client, message)
    assert kind == "bad_keys" and said == (
        "an observation without images/side and with 'wrist'; the model takes prompt, state, images/front, images/side"
    )


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"observation/state": "zero"}, "bad_shape"),
        ({"observation/state": np.zeros((2, 2))}, "bad_shape"),
        ({"observation/state": [[1], [1, 2]]}, "bad_shape"),
        ({"observation/side": PIXELS.astype(np.float32)}, "bad_image"),
        ({"observation/side": np.zeros((4, 8, 6, 3), np.uint8)}, "bad_image"),
        ({"observation/side": np.zeros((0, 6, 3), np.uint8)}, "bad_image"),
        ({"prompt": 5}, "bad_keys"),
        ({"episode": np.zeros(3)}, "bad_keys"),
        ({"inference_delay": 1.5}, "bad_keys"),
        ({"inference_delay": True}, "bad_keys"),
        ({"prev_chunk_left_over": np.zeros((9, 3))}, "bad_shape"),
        ({"prev_chunk_left_over": np.zeros(3)}, "bad_shape"),
        ({"session": np.zeros(3)}, "bad_session"),
        ({"session": {"action_names": np.zeros(3)}}, "bad_session"),
        ({"session": {"conditioning": "magic"}}, "bad_session"),
        ({"session": {"password": ""}}, "bad_session"),
        ({"session": {"component": "a/b"}}, "bad_session"),
        ({"execution_report": {"executing_s": float("nan")}}, "non_finite"),
        ({"observation/deep": {"a": {"b": {"c": {"d": 1}}}}}, "bad_keys"),
        ({"k" * 300: 1}, "bad_keys"),
    ],
)
def test_what_is_wrong_is_refused_under_a_name(client: OpenpiClient, changes: dict[str, Any], kind: str) -> None:
    assert refusal(client, observation(**changes))[0] == kind


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_a_state_that_is_no_number_never_reaches_the_model(server: ModelServer, client: OpenpiClient, value: float) -> None:
    with pytest.raises(BadMessageError) as caught:
        server.submit(ask(client, observation(**{"observation/state": np.array([0, 0, 0, value])})), 0.0)
    assert caught.value.kind == "non_finite" and not server.num_waiting


class Exploit:
    def __reduce__(self) -> Any:
        raise AssertionError("unpickled")


def array(**changes: Any) -> bytes:
    fields = {"__ndarray__": True, "data": b"\0" * 16, "dtype": "<f4", "shape": [4], **changes}
    return bytes(msgpack.packb({"observation/state": {key.encode(): value for key, value in fields.items()}}))


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (array(dtype="|O"), "bad_dtype"),
        (array(dtype="O"), "bad_dtype"),
        (array(dtype="<c8"), "bad_dtype"),
        (array(dtype=[["a", "<f4"]]), "bad_dtype"),
        (array(dtype=">f4"), "bad_dtype"),
        (array(dtype="|V16"), "bad_dtype"),
        (array(shape=[1 << 40]), "bad_array"),
        (array(shape=[-1]), "bad_array"),
        (array(shape=[0, 1 << 62, 1 << 62]), "bad_array"),
        (array(shape=[1] * 80), "bad_array"),
        (array(shape="4"), "bad_array"),
        (array(data="text"), "bad_array"),
        (b"", "bad_frame"),
        (b"\xc1", "bad_frame"),
        (msgpack.packb([1, 2]), "bad_frame"),
        (msgpack.packb({"a": 1})[:-1], "bad_frame"),
        (msgpack.packb({"a": msgpack.ExtType(5, b"x")}), "bad_frame"),
        (msgpack.packb({"a": msgpack.Timestamp(1)}), "bad_frame"),
        (msgpack.packb({str(i): 0 for i in range(wire.MAX_KEYS + 1)}), "bad_frame"),
        (msgpack.packb({"a": [0] * (wire.MAX_VALUES + 1)}), "bad_frame"),
        (msgpack.packb({"a": [{}] * 4000}), "bad_frame"),
        (msgpack.packb({"a": [[]] * 4000}), "bad_frame"),
        (b"\x81\xa1a" + b"\x91" * 2000 + b"\xc0", "bad_frame"),
        (b"\x81\xa1a\xdd\xff\xff\xff\xff", "bad_frame"),
        (b"\x81\xa1a\xc6\xff\xff\xff\xff", "bad_frame"),
        (pickle.dumps({"state": 1}), "bad_frame"),
    ],
)
def test_hostile_frames_are_refused_before_anything_is_built(client: OpenpiClient, frame: bytes, kind: str) -> None:
    assert refusal(client, frame)[0] == kind


def test_no_pickle_is_ever_loaded(client: OpenpiClient) -> None:
    payload = b"cbuiltins\neval\n(S'1/0'\ntR."
    for dtype in ("|O", "O", "object", "|O8"):
        assert refusal(client, array(dtype=dtype, data=payload, shape=[1]))[0] == "bad_dtype"


json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=8) | st.binary(max_size=32),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6) | st.binary(max_size=3), inner, max_size=4),
    max_leaves=12,
)
keys = st.sampled_from(
    ["state", "images", "front", "side", "prompt", "session", "episode", "reset", "inference_delay", "prev_chunk_left_over"]
)
arrays = st.fixed_dictionaries(
    {
        b"__ndarray__": st.just(True),
        b"data": st.binary(max_size=32) | json_like,
        b"dtype": st.sampled_from(["<f4", "|u1", "<i8", "|b1", "<f8", "|O"]) | json_like,
        b"shape": st.lists(st.integers(-2, 9) | st.integers(), max_size=4) | json_like,
    }
)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=64) | st.dictionaries(keys, json_like | arrays, max_size=8))
def test_no_message_does_anything_but_be_refused(message: Any) -> None:
    client = OpenpiClient(SHARED, "ws_9")
    try:
        frame = message if isinstance(message, bytes) else msgpack.packb(message)
    except (ValueError, OverflowError):
        return
    try:
        asked = client.ask(frame)
        if asked is not None:
            SHARED.submit(asked, 0.0)
    except RfmError:
        pass
    finally:
        client.close()


SHARED = server_of(cameras=("front",), state_size=0)


def test_a_session_opens_once_and_again_for_other_terms(server: ModelServer, client: OpenpiClient) -> None:
    first = ask(client, observation())
    assert ask(client, observation()).id.session_epoch == first.id.session_epoch
    words = {"conditioning": "guided", "guidance": {"schedule": "exp", "max_weight": 5.0}, "action_names": list(ACTIONS)}
    second = ask(client, observation(session=words))
    assert second.id.session_epoch > first.id.session_epoch and second.id.sequence == 3
    again = ask(client, observation())
    assert again.id.session_epoch == second.id.session_epoch
    server.submit(again, 0.0)
    row = server.loop.begin(0.0).batch[0].request  # type: ignore[union-attr]
    assert row.conditioning is Conditioning.GUIDED and row.guidance.schedule is PrefixSchedule.EXP
    assert server.session_names() == ["ws_1/system1"]
    client.close()
    assert server.session_names() == []


def test_the_contract_is_checked_as_for_every_robot(client: OpenpiClient) -> None:
    for words, differs in (
        ({"action_names": ["y", "x", "grip"]}, "action names and order"),
        ({"expected_model_hash": "ab"}, "model hash"),
        ({"pipelining": {"pp_perception": 1}}, "pipelining: this door answers one observation after the other"),
    ):
        with pytest.raises(ContractError, match=differs):
            client.ask(msgpack_numpy.packb(observation(session=words)))
    with pytest.raises(ContractError, match="state size"):
        client.ask(msgpack_numpy.packb(observation(**{"observation/state": np.zeros(5)})))


def test_a_prefix_turns_conditioning_on_and_model_space_actions_come_back(server: ModelServer, client: OpenpiClient) -> None:
    asked = ask(client, observation(prev_chunk_left_over=np.ones((5, 3)), inference_delay=2))
    assert asked.prefix_model.shape == (5, 3) and asked.inference_delay_steps == 2
    told = client.answer(serve(server, asked))
    assert told["actions_model"].shape == (8, 3) and told["inference_delay"] == 2


def test_episodes_begin_with_reset_or_another_value(server: ModelServer, client: OpenpiClient) -> None:
    assert client.ask(msgpack_numpy.packb({"reset": True})) is None
    episodes = [ask(client, observation(**changes)).id.episode for changes in ({}, {"episode": 7}, {"episode": 7}, {"reset": True})]
    assert episodes == [2, 3, 3, 4]
    assert serve(server, ask(client, observation())).id.episode == 4


def test_text_models_answer_in_words() -> None:
    server = server_of(output=OutputKind.JUDGEMENT)
    client = OpenpiClient(server, "ws_1")
    told = client.answer(serve(server, ask(client, observation())))
    assert told["verdict"] == "ongoing" and told["text"] == "emulated" and "actions" not in told


def test_metadata_is_the_contract(server: ModelServer, client: OpenpiClient) -> None:
    metadata = msgpack_numpy.unpackb(wire.packer().pack(client.metadata()))
    assert metadata.pop("server") == wire.OURS
    assert wire.CONTRACT.validate_python(metadata) == server.contract.for_remote_engine
