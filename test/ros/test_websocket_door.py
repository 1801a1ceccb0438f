"""The websocket door of a model server with openpi's own client, and with clients that mean harm."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import rclpy
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from ros2_rfm_serving import wire
from ros2_rfm_serving.engines.registry import EngineSpec, build_engine
from ros2_rfm_serving.errors import ConfigurationError, ModelError
from ros2_rfm_serving.factory import CatalogueEntry
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.ros.model_server_node import ModelServerNode
from ros2_rfm_serving.ros.node.runtime import executor
from ros2_rfm_serving.ros.server import websocket_settings as gateway
from ros2_rfm_serving.ros.server.websocket_door import WebsocketDoor
from ros2_rfm_serving.ros.server.websocket_entry import DoorConfig
from ros2_rfm_serving.types import (
    Conditioning,
    Guidance,
    HorizonRequest,
    InferenceRequest,
    PrefixSchedule,
    RequestId,
    empty,
)
from test.ports import free_port

from .door_rig import JPEG, SPOILT, TOKEN, Rig, eventually, observation, running


@pytest.fixture
def rig() -> Iterator[Rig]:
    with running() as made:
        yield made


def test_the_real_client_infers_and_two_at_once_get_their_own_chunks(rig: Rig) -> None:
    clients = [rig.client() for _ in range(2)]
    assert clients[0].get_server_metadata()["action_names"] == ["a", "b"]
    told: dict[int, list[Any]] = {0: [], 1: []}

    def work(i: int) -> None:
        told[i] += [clients[i].infer(observation(10 * i + step))["actions"] for step in range(20)]

    threads = [threading.Thread(target=work, args=(i,)) for i in told]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [[chunk[0, 0] for chunk in told[i]] for i in told] == [[10 * i + step for step in range(20)] for i in told]
    assert told[0][0].shape == (4, 2) and not rig.left
    assert rig.engine.asked[0].images["front"].shape == (48, 64, 3) and rig.engine.asked[0].instruction == "pick"
    for client in clients:
        client._ws.close()
    assert eventually(lambda: rig.server.session_names() == [])


def test_a_wrong_observation_is_explained_counted_and_harms_nobody_else(rig: Rig) -> None:
    good, bad = rig.client(), rig.client()
    with pytest.raises(RuntimeError, match="the model takes prompt, state, images/front"):
        bad.infer({"observation/state": np.zeros(2), "wrist": JPEG})
    with pytest.raises(ConnectionClosed) as closed:
        bad._ws.recv()
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1011
    with pytest.raises(RuntimeError, match="not a JPEG"):
        rig.client().infer({**observation(), "observation/images/front": JPEG[:40]})
    with pytest.raises(RuntimeError, match="action names and order"):
        rig.client().infer({**observation(), "session": {"action_names": ["b", "a"]}})
    assert good.infer(observation(3))["actions"][0, 0] == 3
    assert rig.refused("bad_keys") and rig.refused("bad_image") and rig.refused("contract")


def test_hostile_frames_are_refused_and_counted(rig: Rig) -> None:
    array = {b"__ndarray__": True, b"data": b"cos\nsystem\n", b"dtype": "|O", b"shape": [1]}
    for frame, says in ((msgpack.packb({"state": array}), "dtype"), (b"\xc1", "msgpack"), ("text", "binary")):
        with connect(rig.url) as stranger:
            stranger.recv()
            stranger.send(frame)
            said = stranger.recv()
            assert isinstance(said, str) and says in said
    assert rig.refused("bad_dtype") and rig.refused("bad_frame", 2)
    with connect(rig.url, max_size=None) as stranger:
        stranger.recv()
        with contextlib.suppress(ConnectionClosed):
            stranger.send(b"\0" * (wire.max_frame_bytes(1) + 1))
            assert "bytes" in str(stranger.recv())
    with connect(rig.url) as stranger:  # the length alone is enough
        stranger.recv()
        stranger.socket.sendall(b"\x82\xff" + (1 << 40).to_bytes(8, "big") + b"\0\0\0\0")
        with pytest.raises(ConnectionClosed):
            stranger.recv()
    assert rig.refused("frame_too_large", 2)
    assert rig.client().infer(observation(1))["actions"][0, 0] == 1


def test_who_may_come_in() -> None:
    with running(token=TOKEN, max_connections=1) as rig:
        for token in (None, "wrong", TOKEN + "x"):
            with pytest.raises(InvalidStatus) as refused:
                rig.client(token)
            assert refused.value.response.status_code == 401
        first = rig.client(TOKEN)
        with pytest.raises(InvalidStatus) as refused:
            rig.client(TOKEN)
        assert refused.value.response.status_code == 503
        with pytest.raises(InvalidStatus) as refused:
            connect(rig.url, origin="http://elsewhere", additional_headers={"Authorization": f"Api-Key {TOKEN}"})  # type: ignore[arg-type]
        assert refused.value.response.status_code == 403
        assert first.infer(observation(2))["actions"][0, 0] == 2
        counts = [rig.server.refused[kind] for kind in ("gateway_token", "gateway_connections", "gateway_origin")]
        assert counts == [3, 1, 1]


def test_health_is_readiness(rig: Rig) -> None:
    url = f"http://127.0.0.1:{rig.door.port}/healthz"
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert answer.status == 200
    rig.serves = False
    with pytest.raises(urllib.error.HTTPError, match="503"):
        urllib.request.urlopen(url, timeout=20)
    with pytest.raises(InvalidStatus):
        rig.client()


def test_half_a_handshake_takes_nobodys_place() -> None:
    with running(max_connections=1) as rig:
        for _ in range(3):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                urllib.request.urlopen(f"http://127.0.0.1:{rig.door.port}/", timeout=20)
        assert rig.client().infer(observation(1))["actions"][0, 0] == 1


def test_a_row_that_the_model_could_not_answer_is_told_at_once_and_without_its_reason(rig: Rig) -> None:
    with pytest.raises(RuntimeError, match="the model could not answer") as error:
        rig.client().infer(observation(SPOILT))
    assert "Traceback" not in str(error.value)
    assert rig.refused("gateway_no_answer") and rig.client().infer(observation(1))["actions"][0, 0] == 1


def test_a_client_that_leaves_in_the_middle_leaves_nothing_behind(rig: Rig) -> None:
    rig.engine.go.clear()
    with connect(rig.url) as leaver:
        leaver.recv()
        leaver.send(wire.packer().pack(observation(1)))
        assert eventually(lambda: rig.server.session_names() == ["ws-1/system1"])
        leaver.socket.close()
    assert eventually(lambda: rig.server.session_names() == [])
    rig.engine.go.set()
    assert rig.client().infer(observation(5))["actions"][0, 0] == 5
    assert not rig.left


def test_one_request_at_a_time() -> None:
    with running(reply_s=600.0, idle_s=600.0) as rig:
        rig.engine.go.clear()
        with connect(rig.url) as hasty:
            hasty.recv()
            for _ in range(2):
                hasty.send(wire.packer().pack(observation()))
            assert "one request at a time" in str(hasty.recv())
        assert rig.refused("gateway_busy")


def test_no_request_waits_for_ever() -> None:
    with running(reply_s=0.2, idle_s=600.0) as rig:
        rig.engine.go.clear()
        client = rig.client()
        with pytest.raises(RuntimeError, match="not answered"):
            client.infer(observation())
        assert rig.refused("gateway_no_reply")


def test_no_silence_is_borne_for_ever() -> None:
    with running(idle_s=0.5) as rig:
        with connect(rig.url) as silent:
            silent.recv()
            assert "too long" in str(silent.recv(timeout=60))
        assert rig.refused("gateway_idle")


def test_drained_clients_are_told_and_the_request_that_runs_is_answered(rig: Rig) -> None:
    waiting, idle = rig.client(), rig.client()
    rig.engine.go.clear()
    told: list[Any] = []
    thread = threading.Thread(target=lambda: told.append(waiting.infer(observation(4))))
    thread.start()
    assert eventually(lambda: not rig.server.is_idle)
    rig.server.drain()
    rig.engine.go.set()
    thread.join(20)
    assert told[0]["actions"][0, 0] == 4
    with pytest.raises(RuntimeError, match="draining"):
        idle.infer(observation())
    rig.door.release("shutting down")
    with pytest.raises(
        (RuntimeError, ConnectionClosed), match=r"shutting down|1012"
    ):  # in words, or with the end of the connection
        waiting.infer(observation())


# --- the engine `remote` --------------------------------------------------------------------------------------------------


def remote(url: str, **options: Any) -> Any:
    entry = CatalogueEntry(engine="remote", options={"url": url, "timeout_s": 30.0, **options})
    spec = EngineSpec(model="m", entry=entry, models_folder=Path(), profile=Profile({}), gpu_type="", wait=time.sleep)
    return build_engine(spec)


def row(value: float, **changes: Any) -> InferenceRequest:
    fields = {
        "id": RequestId(robot="r", component="system1", session_epoch=1, episode=1, sequence=1),
        "instruction": "pick",
        "state": np.full(2, value, np.float32),
        "images": {"front": np.zeros((8, 8, 3), np.uint8)},
        "inference_delay_steps": 0,
        "prefix_model": empty(0, 2),
        **changes,
    }
    return InferenceRequest(**fields)


def test_a_remote_server_of_ours_is_an_engine_with_all_it_can_do(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = remote(rig.url, connections=4)
    try:
        assert engine.contract == rig.server.contract.for_remote_engine and engine.max_batch_size == 4 and engine.takes_encoded
        engine.warm_up()
        guided = {
            "conditioning": Conditioning.GUIDED,
            "guidance": Guidance(schedule=PrefixSchedule.EXP, max_weight=3.0),
            "prefix_model": np.ones((3, 2), np.float32),
            "inference_delay_steps": 2,
        }
        spoilt = row(9, state=np.full(2, np.nan, np.float32))
        replies = engine.infer([row(1), spoilt, row(2, **guided)])
        assert replies[0].chunk_robot[0, 0] == 1 and replies[2].chunk_robot[0, 0] == 2 and replies[2].chunk_model[0, 0] == 3
        assert isinstance(replies[1], ModelError) and "NaN" in str(replies[1])
        asked = next(request for request in rig.engine.asked if request.state[0] == 2)
        assert asked.conditioning is Conditioning.GUIDED and asked.guidance == guided["guidance"]
        assert asked.inference_delay_steps == 2 and asked.prefix_model.shape == (3, 2)
        assert engine.infer([row(5), row(6)])[1].chunk_robot[0, 0] == 6
        of_three, own = engine.infer([row(7, horizon=HorizonRequest(policy="static", steps=3)), row(8)])
        assert (of_three.execution_horizon, own.execution_horizon) == (3, 0)
    finally:
        engine.close()


def test_a_remote_server_that_went_comes_back_and_never_costs_more_than_its_time() -> None:
    with running() as first:
        port = first.door.port
        engine = remote(first.url, timeout_s=2.0, connections=1)

        def answered(value: int) -> bool:
            """In time, which a machine that stands still keeps it from."""
            with contextlib.suppress(ModelError):
                return bool(engine.infer([row(value)])[0].chunk_robot[0, 0] == value)
            return False

        first.engine.go.clear()
        with pytest.raises(ModelError, match="no answer within 2 s"):
            engine.infer([row(1)])
        first.engine.go.set()
        assert eventually(lambda: answered(2))
    try:
        with pytest.raises(ModelError):
            engine.infer([row(3)])
        second = Rig()
        second.door.stop()
        second.door = WebsocketDoor(DoorConfig(port=port), lambda: (second.server, second.thread.wake), second.logged.append)
        assert eventually(lambda: answered(4))
        second.stop()
    finally:
        engine.close()


def test_a_foreign_server_has_to_be_described_and_is_never_asked_for_more(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ros2_rfm_serving.server.openpi.protocol.OpenpiClient.metadata", lambda self: {"policy": "somebody's"})
    with pytest.raises(ModelError, match=r"say options\.action_names"):
        remote(rig.url)
    engine = remote(
        rig.url, action_names=["a", "b"], chunk_length=4, state_size=2, cameras=["front"], names={"front": "observation/front"}
    )
    try:
        assert engine.contract.conditionings == (Conditioning.NONE,) and not engine.takes_encoded
        assert engine.infer([row(7)])[0].chunk_robot.tolist() == [[7, 7]] * 4
    finally:
        engine.close()
    with pytest.raises(ModelError, match="cannot connect"):
        remote("ws://127.0.0.1:9")
    with pytest.raises(ConfigurationError, match="RFM_NO_TOKEN is empty"):
        remote(rig.url, token_env="RFM_NO_TOKEN")


# --- in the node ----------------------------------------------------------------------------------------------------------


def test_a_model_server_opens_its_door_and_ends_with_it(ros_domain: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFM_TEST_TOKEN", TOKEN)
    port = free_port()
    given = {"server": "s1", "model": "emulated/arm-policy", "gpu_type": "EMULATED", "batch_size": 4, "max_sessions": 4}
    given |= {"gateway_port": port, "gateway_token_env": "RFM_TEST_TOKEN", "gateway_names": ["observation/image=front"]}
    arguments = [
        argument for name, value in given.items() for argument in ("-p", f"{name}:={str(value).replace(chr(39), chr(34))}")
    ]
    rclpy.init(args=["--ros-args", *arguments])
    node, spinner = ModelServerNode(), executor()
    spinner.add_node(node)
    ending = threading.Event()

    def spin() -> None:
        while not ending.is_set():
            spinner.spin_once(timeout_sec=0.05)

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        assert eventually(lambda: node._doors.serving() is not None)
        client = WebsocketClientPolicy("127.0.0.1", port, api_key=TOKEN)
        told = client.infer({"observation/state": np.zeros(39), "observation/image": JPEG, "side": JPEG, "prompt": "reach"})
        assert told["actions"].shape == (16, 4)
        assert client.get_server_metadata()["model"] == "emulated emulated/arm-policy"
    finally:
        ending.set()
        thread.join(20)
        node.stop()
        spinner.shutdown()
        node.destroy_node()
        rclpy.try_shutdown()
    with pytest.raises((RuntimeError, ConnectionClosed)):
        client.infer({})
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_names_and_tokens_that_cannot_be_are_refused_at_start() -> None:
    with pytest.raises(ConfigurationError, match="observation/image=front"):
        gateway._names(["front"])
    with running() as rig, pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{rig.door.port}"):
        WebsocketDoor(DoorConfig(port=rig.door.port), lambda: None, print)
