"""The engine `remote` and the websocket door in vLLM-Omni's dialect: with a fake that is held to its source, and with the source.

With RFM_VLLM_OMNI="PYTHON CHECKOUT" (see `vllm_omni/source.py`) every test of the engine runs against vLLM-Omni's own code, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openpi_client import msgpack_numpy
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from ros2_rfm_serving.engines.registry import EngineSpec, build_engine
from ros2_rfm_serving.engines.remote.connection_pool import ConnectionPool
from ros2_rfm_serving.errors import ConfigurationError, ModelError
from ros2_rfm_serving.factory import CatalogueEntry
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.server.openpi.vllm_omni import VllmOmniTerms
from ros2_rfm_serving.types import InferenceRequest, RequestId, empty
from test.waiting import eventually

from .door_rig import JPEG, SPOILT, TOKEN, running
from .vllm_omni import record
from .vllm_omni.fake import PATH, FakeOmni
from .vllm_omni.pipeline import ANNOUNCED
from .vllm_omni.seen import seen, seen_at_the_end, seen_without_a_policy

RECORDED = json.loads(record.RECORD.read_text())
SOURCE = os.environ.get("RFM_VLLM_OMNI", "").split()
FLAT = {"action_names": ["a", "b"], "state_size": 2, "cameras": ["front"]}
NESTED = {
    "nested": True,
    "state_parts": {"arm": 1, "hand": 1},
    "action_parts": {"arm": 1, "hand": 1},
    "names": {"prompt": "task", "front": "front_left"},
}


SERVED = pytest.fixture(params=["fake", *(["source"] if SOURCE else [])])


@contextmanager
def served(kind: str, idle_s: float) -> Iterator[str]:
    """Where; it bears silence for so long."""
    if kind == "source":
        with record.running(SOURCE[0], Path(SOURCE[1]), idle_s) as (address, _):
            yield address + PATH
        return
    made = FakeOmni(idle_s=idle_s)
    yield made.url
    made.stop()


@SERVED
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of a server that bears any silence, also that of a machine that stands still."""
    with served(request.param, 60.0) as address:
        yield address


@SERVED
def impatient_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of one that bears it for a second."""
    with served(request.param, record.IDLE_S) as address:
        yield address


@pytest.fixture
def fake() -> Iterator[FakeOmni]:
    made = FakeOmni()
    yield made
    made.stop()


def remote(url: str, **options: Any) -> Any:
    entry = CatalogueEntry(engine="remote", options={"url": url, "dialect": "vllm_omni", "timeout_s": 30.0, **FLAT, **options})
    return build_engine(EngineSpec(model="m", entry=entry, models_folder=Path(), profile=Profile({}), gpu_type="", wait=time.sleep))


def row(value: float, robot: str = "r", episode: int = 1, **changes: Any) -> InferenceRequest:
    fields: dict[str, Any] = {
        "id": RequestId(robot=robot, component="system1", session_epoch=1, episode=episode, sequence=1),
        "instruction": "pick",
        "state": np.full(2, value, np.float32),
        "images": {"front": np.zeros((8, 8, 3), np.uint8)},
        "inference_delay_steps": 0,
        "prefix_model": empty(0, 2),
    }
    return InferenceRequest(**{**fields, **changes})


def values(reply: Any) -> tuple[float, bool]:
    """What was asked, and whether the model began anew."""
    assert reply.chunk_robot.shape == (4, 2) and (reply.chunk_robot == reply.chunk_robot[0]).all()
    return float(reply.chunk_robot[0, 0]), bool(reply.chunk_robot[0, 1])


# --- the fake is what the source is ---------------------------------------------------------------------------------------


def test_a_client_sees_of_the_fake_what_it_saw_of_the_source() -> None:
    fake = FakeOmni(idle_s=record.IDLE_S)
    assert seen(fake.url) == RECORDED["seen"]
    assert seen_at_the_end(fake.url, fake.stop) == RECORDED["ended"]
    killed, without = FakeOmni(), FakeOmni(announced=None)
    assert seen_at_the_end(killed.url, killed.die) == RECORDED["killed"]
    assert seen_without_a_policy(without.url) == RECORDED["without a policy"]
    killed.stop()
    without.stop()


@pytest.mark.skipif(not SOURCE, reason="RFM_VLLM_OMNI names no checkout")
def test_the_source_is_what_was_recorded() -> None:
    told = record.recorded(SOURCE[0], Path(SOURCE[1]), RECORDED["revision"])
    assert told == RECORDED


# --- the engine -----------------------------------------------------------------------------------------------------------


def test_robots_get_their_own_chunks_and_begin_their_own_episodes(url: str) -> None:
    engine = remote(url, connections=3)
    try:
        engine.warm_up()
        assert engine.contract.chunk_length == 4 and engine.max_batch_size == 3  # the length as the server announced it
        first = engine.infer([row(1, "x"), row(2, "y")])
        assert [values(reply) for reply in first] == [(1, True), (2, True)]
        swapped = engine.infer([row(3, "y"), row(4, "z"), row(5, "x")])
        assert [values(reply) for reply in swapped] == [(3, False), (4, True), (5, False)]
        assert values(engine.infer([row(6, "x", episode=2)])[0]) == (6, True)
        assert values(engine.infer([row(7, "x", episode=2)])[0]) == (7, False)
    finally:
        engine.close()


def test_after_a_silence_the_next_request_is_answered_over_a_new_connection(impatient_url: str) -> None:
    engine = remote(impatient_url, connections=1)
    try:
        assert values(engine.infer([row(1)])[0]) == (1, True)
        time.sleep(2.5 * record.IDLE_S)
        assert values(engine.infer([row(2)])[0]) == (2, True)  # the server forgot it with the connection
        assert eventually(lambda: values(engine.infer([row(3)])[0]) == (3, False)), "two without a silence between them"
    finally:
        engine.close()


def test_a_request_that_meets_the_end_of_an_old_connection_is_asked_again(fake: FakeOmni) -> None:
    engine = remote(fake.url, connections=1)
    try:
        engine.infer([row(1)])
        fake.loses = 1
        assert values(engine.infer([row(2)])[0]) == (2, True) and fake.num_connections == 2
        fake.loses = 2  # over a new connection, too: that is no accident
        with pytest.raises(ModelError, match=r"the server closed the connection|the connection was lost"):
            engine.infer([row(3)])
        assert fake.num_connections == 3
        assert values(engine.infer([row(4)])[0]) == (4, True)
    finally:
        engine.close()


def test_an_error_costs_its_row_and_no_connection(url: str) -> None:
    engine = remote(url, connections=2)
    try:
        good, bad = engine.infer([row(1, "x"), row(2, "y", instruction="fail")])
        assert values(good) == (1, True) and isinstance(bad, ModelError) and "Internal inference error" in str(bad)
        assert [values(reply) for reply in engine.infer([row(3, "x"), row(4, "y")])] == [(3, False), (4, False)]
    finally:
        engine.close()


def test_nested_observations_and_named_chunks(url: str) -> None:
    engine = remote(url, **NESTED)
    try:
        assert values(engine.infer([row(7)])[0]) == (7, True)
    finally:
        engine.close()


def test_what_a_server_is_told(fake: FakeOmni) -> None:
    parts = {"state_parts": {"observation/joints": 1, "observation/gripper": 1}, "names": {"front": "observation.images.base"}}
    told = {"flat": remote(fake.url, embodiment="LIBERO"), "parts": remote(fake.url, **parts), "nested": remote(fake.url, **NESTED)}
    request = row(7, state=np.float32([7, 8]))
    for name, engine in told.items():
        if name == "parts":
            with pytest.raises(ModelError):
                engine.infer([request])
        else:
            engine.infer([request])
        engine.close()
    (session, _, flat), (_, _, parted), (_, _, nested) = fake.asked
    assert session == "r" and flat.keys() == {"session_id", "embodiment", "prompt", "state", "front"}
    assert flat["embodiment"] == "LIBERO" and flat["front"].shape == (8, 8, 3)
    assert parted["observation/joints"].tolist() == [7] and parted["observation/gripper"].tolist() == [8]
    assert parted["observation.images.base"].dtype == np.uint8
    assert nested["video"]["front_left"].shape == (1, 1, 8, 8, 3) and nested["language"] == {"task": [["pick"]]}
    assert {name: part.tolist() for name, part in nested["state"].items()} == {"arm": [[[7]]], "hand": [[[8]]]}


@pytest.mark.parametrize(
    ("announced", "options", "problem"),
    [
        ({"action_horizon": 8}, {"chunk_length": 4}, r"answers with 8 rows .*chunk_length is 4"),
        ({"action_dim": 32}, {}, r"32 columns .*padded_actions: 32"),
        ({"action_keys": ["eef", "hand"]}, {}, "the chunks eef, hand; options.action_parts"),
        ({"supported_embodiments": ["XDOF"]}, {"embodiment": "LIBERO"}, "'LIBERO'; it knows XDOF"),
        ({"action_keys": [{"eef": 6}]}, {"action_parts": {"eef": 2}}, "the chunks {'eef': 6}; options.action_parts"),
        ({"supported_embodiments": [np.zeros(2), "XDOF"]}, {"embodiment": "LIBERO"}, "'LIBERO'; it knows .*XDOF"),
        ({}, {}, r"say options\.action_names and options\.chunk_length"),
        (None, {}, "the server refused: .*Robot policy not available"),
    ],
)
def test_a_server_that_serves_something_else_is_refused_at_the_start(announced: Any, options: Any, problem: str) -> None:
    other = FakeOmni(announced=announced)
    try:
        with pytest.raises(ModelError, match=problem):
            remote(other.url, **options)
    finally:
        other.stop()


def test_a_reply_of_another_form_says_what_it_has_and_which_option_tells_so(fake: FakeOmni) -> None:
    engines = [remote(fake.url, action_parts={"arm": 1, "hand": 1}), remote(fake.url, padded_actions=3)]
    engines.append(remote(fake.url, **{**NESTED, "action_parts": {}}))
    problems = [r"the chunks arm, hand \(options\.action_parts\), it has one array", r"shape \(4, 3\), it has shape \(4, 2\)"]
    problems.append(r"named chunks; options\.action_parts must name them, such as \{arm: \.\.\., hand: \.\.\.\}")
    for engine, problem in zip(engines, problems, strict=True):
        with pytest.raises(ModelError, match=problem):
            engine.infer([row(1)])
        engine.close()


ODD = np.array([1, 2])


@pytest.mark.parametrize("says", [{"type": ODD}, {"status": ODD}, {"type": ["error"]}, {"actions": {"a": ODD}}, {"status": 3}])
def test_an_odd_reply_is_one_row_s_error(fake: FakeOmni, says: dict[str, Any]) -> None:
    engine = remote(fake.url, connections=2)
    try:
        assert [values(reply)[0] for reply in engine.infer([row(1, "odd"), row(2, "y")])] == [1, 2]
        fake.says = says
        for episode in (1, 2):  # the second begins with a reset
            odd, good = engine.infer([row(3, "odd", episode), row(4, "y")])
            assert isinstance(odd, ModelError) and values(good) == (4, False)
    finally:
        engine.close()


def test_a_server_may_announce_arrays(fake: FakeOmni) -> None:
    fake._announced = {**ANNOUNCED, "pose": ODD}
    engine = remote(fake.url, connections=2)
    try:
        assert [values(reply)[0] for reply in engine.infer([row(1, "x"), row(2, "y")])] == [1, 2]
        fake._announced = {**ANNOUNCED, "pose": ODD + 1}
        fake.loses = 1
        with pytest.raises(ModelError, match="serves another model than before"):
            engine.infer([row(3, "x")])
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"dialect": "openpi", "nested": True}, "nested: only with"),
        ({"state_parts": {"arm": 7}}, "sizes of 7 in all.*state_size, 2"),
        ({"action_parts": {"arm": 0, "hand": 2}}, "at least 1"),
        ({"nested": True}, r"names\.prompt"),
        ({"nested": True, "names": {"prompt": "task"}}, "state_parts must name"),
        ({"padded_actions": 1}, "1 columns cannot hold 2"),
        ({"token_env": "A", "token_file": "b"}, "give one of them"),
    ],
)
def test_options_that_contradict_each_other(options: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        remote("ws://127.0.0.1:9", **options)


def test_a_token_goes_as_a_bearer_and_never_into_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, file = FakeOmni(token=TOKEN.replace(" ", "-")), tmp_path / "token"
    try:
        file.write_text(f"{TOKEN.replace(' ', '-')}\n")
        with pytest.raises(ConfigurationError, match="others on this machine may read it"):
            remote(server.url, token_file=str(file))
        file.chmod(0o600)
        engine = remote(server.url, token_file=str(file))
        assert values(engine.infer([row(1)])[0]) == (1, True) and server.headers[0] == f"Bearer {TOKEN.replace(' ', '-')}"
        engine.close()
        monkeypatch.setenv("RFM_OTHER_TOKEN", "not-the-one-they-want")
        with pytest.raises(ModelError, match="401: it wants another token") as refused:
            remote(server.url, token_env="RFM_OTHER_TOKEN")
        assert "not-the-one" not in str(refused.value) and refused.value.__cause__ is None
        monkeypatch.setenv("RFM_OTHER_TOKEN", "two\nlines of-it")
        with pytest.raises(ConfigurationError, match="no header can have") as refused_before:
            remote(server.url, token_env="RFM_OTHER_TOKEN")
        assert "lines" not in str(refused_before.value)
    finally:
        server.stop()


@given(st.integers(1, 6), st.lists(st.lists(st.integers(0, 9), unique=True), max_size=30))
def test_everybody_has_a_place_of_their_own_and_keeps_it_while_there_is_room(num_places: int, batches: list[list[int]]) -> None:
    seats, last = ConnectionPool(range(num_places)), {}
    for batch in (batch[:num_places] for batch in batches):
        places = seats.acquire(batch)
        seats.release(places)
        assert len(set(places)) == len(batch)
        for robot, place in zip(batch, places, strict=True):
            others = {robot for robot, theirs in last.items() if theirs == place}
            assert last.get(robot, place) == place or others  # theirs was given to another one meanwhile
            assert last.get(robot) == place or robot not in last
            last = {who: where for who, where in last.items() if where != place} | {robot: place}


def test_a_place_in_use_is_nobody_else_s_nor_twice_its_own_holder_s() -> None:
    seats = ConnectionPool("abcd")
    first, second = seats.acquire([1, 2]), seats.acquire([1, 3])
    assert len({*first, *second}) == 4
    seats.release(first)
    assert set(seats.acquire([4, 5])) == set(first)


# --- the door -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def opened(door: Any, token: str = "") -> Iterator[tuple[ClientConnection, dict[str, Any]]]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with connect(door.url + PATH, compression=None, max_size=None, additional_headers=headers) as client:
        yield client, msgpack_numpy.unpackb(client.recv())


def told(client: ClientConnection, **message: Any) -> Any:
    client.send(msgpack_numpy.packb(message))
    return msgpack_numpy.unpackb(client.recv(timeout=20))


def test_clients_of_vllm_omni_are_answered_as_there() -> None:
    with running(token=TOKEN) as rig, opened(rig, TOKEN) as (client, announced):
        assert announced["action_horizon"] == 4 and announced["action_dim"] == 2 and "server" not in announced
        flat = {"state": np.float32([3, 0]), "front": np.zeros((8, 8, 3), np.uint8), "prompt": "pick", "endpoint": "infer"}
        assert told(client, **flat).tolist() == [[3, 3]] * 4
        assert told(client, **{**flat, "front": np.zeros((4, 8, 8, 3), np.uint8)}).tolist() == [[3, 3]] * 4
        error = told(client, **{**flat, "state": np.float32([SPOILT, 0])})
        assert error == {"type": "error", "message": "the model could not answer"}
        assert "without images/front" in told(client, endpoint="infer", state=np.float32([3, 0]))["message"]
        assert told(client, endpoint="reset") == {"status": "reset successful"}
        assert told(client, **flat).tolist() == [[3, 3]] * 4


def test_sessions_and_resets_begin_episodes_and_nothing_else_does() -> None:
    with running() as rig, opened(rig) as (client, _):
        flat = {"state": np.float32([3, 0]), "front": JPEG, "prompt": "pick"}
        for session in (None, None, "a", "a", "b"):
            told(client, **flat, **({"session_id": session} if session else {}))
        told(client, endpoint="reset")
        for session in ("b", "b", None):
            told(client, **flat, **({"session_id": session} if session else {}))
        episodes = [asked.id.episode for asked in rig.engine.asked]
        assert np.diff(episodes).tolist() == [0, 1, 0, 1, 1, 0, 0]


def test_nested_observations_of_gr00t_and_its_named_chunks() -> None:
    names = {"video/left": "front", "state/arm": "state", "state/hand": "state"}
    terms = VllmOmniTerms(announced={"embodiment_tag": "LIBERO_PANDA"}, chunks={"arm": 1, "hand": 1})
    with running(names=names, vllm_omni=terms) as rig, opened(rig) as (client, announced):
        assert announced["action_keys"] == ["arm", "hand"] and announced["embodiment_tag"] == "LIBERO_PANDA"
        nested = {
            "video": {"left": np.zeros((1, 2, 8, 8, 3), np.uint8)},
            "state": {"arm": np.float32([[[9], [5]]]), "hand": np.float32([[[6]]])},
            "language": {"annotation.language": [["pick"]]},
        }
        reply = told(client, session_id="x", **nested)
        assert {name: (chunk.shape, float(chunk[0, 0, 0])) for name, chunk in reply.items()} == {
            "arm": ((1, 4, 1), 5.0),
            "hand": ((1, 4, 1), 5.0),
        }
        asked = rig.engine.asked[0]
        assert asked.state.tolist() == [5, 6] and asked.instruction == "pick" and asked.images["front"].shape == (8, 8, 3)
        two = {**nested, "state": {"arm": np.zeros((2, 1, 1), np.float32), "hand": np.float32([[[6]]])}}
        assert "a batch of 2" in told(client, session_id="x", **two)["message"]
        assert "one instruction" in told(client, session_id="x", **{**nested, "language": {"a": 1}})["message"]


def test_chunks_that_are_not_the_models_are_said_once() -> None:
    with running(vllm_omni=VllmOmniTerms(chunks={"arm": 7})) as rig:
        for _ in range(3):
            with pytest.raises(InvalidStatus, match="500"), opened(rig):
                pass
        assert rig.refused("gateway_chunks", 3)
        (said,) = rig.logged
        assert "gateway_chunks" in said and "7 columns" in said
        rig.logged.clear()


def test_the_engine_and_the_door_understand_each_other() -> None:
    with running(token=TOKEN) as rig, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RFM_TOKEN", TOKEN.replace(" ", "-"))
        with pytest.raises(ModelError, match="401"):
            remote(rig.url + PATH, token_env="RFM_TOKEN")
    with running(token="a-token-without-spaces") as rig, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RFM_TOKEN", "a-token-without-spaces")
        engine = remote(rig.url + PATH, token_env="RFM_TOKEN")
        assert engine.infer([row(3)])[0].chunk_robot.tolist() == [[3, 3]] * 4
        assert engine.infer([row(4, episode=2)])[0].chunk_robot.tolist() == [[4, 4]] * 4
        engine.close()
