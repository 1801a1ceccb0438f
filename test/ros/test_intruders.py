"""Who means harm at the websocket door while a robot is served: each is refused and counted, and the robot's SLO holds."""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import connect

from ros2_rfm_serving import wire
from ros2_rfm_serving.errors import BadMessageError, ConfigurationError, ModelError
from ros2_rfm_serving.security.authority import Authority, utc_now
from ros2_rfm_serving.security.doorstep import MAX_WAITING
from ros2_rfm_serving.security.folder import write_private, write_public
from ros2_rfm_serving.security.tls import ServerTls, client_context
from ros2_rfm_serving.security.tokens import TokenFile, hashed, new_token
from ros2_rfm_serving.types import ObservationRequest

from .door_rig import Rig, eventually, observation, running
from .test_websocket_door import remote, row

SLO_S = 15.0
"""Generous: the machine is busy with other tests, and may stand still. Without bounds there would be no answer at all."""
PATIENCE_S = 60.0
"""Longer than anybody waits for this robot: then it is told what became of its request, not that it had none in time."""


class Secured:
    """A door with TLS and a token each for A and B."""

    def __init__(self, rig: Rig, folder: Path, tokens: dict[str, str]) -> None:
        self.rig, self.folder, self.tokens = rig, folder, tokens
        self.trusted = client_context(folder / "ca.pem", "test")

    def connect(self, client: str, **more: Any) -> Any:
        return connect(self.url, ssl=self.trusted, additional_headers=self.key(client), max_size=None, **more)

    def key(self, client: str) -> dict[str, str]:
        return {"Authorization": f"Api-Key {self.tokens[client]}"}

    @property
    def url(self) -> str:
        return f"wss://127.0.0.1:{self.rig.door.port}"

    def refused(self, kind: str) -> int:
        return self.rig.server.refused[kind]

    def write_tokens(self, *clients: str) -> None:
        write_private(self.folder / "tokens", "".join(f"{name} {hashed(self.tokens[name])}\n" for name in clients).encode())


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Secured]:
    authority, tokens = Authority.new("plant", utc_now()), {"A": new_token(), "B": new_token()}
    identity = authority.issue("server_1", ["127.0.0.1"], utc_now())
    write_private(tmp_path / "key.pem", identity.key_pem)
    write_public(tmp_path / "cert.pem", identity.certificate_pem)
    write_public(tmp_path / "ca.pem", authority.identity.certificate_pem)
    write_private(tmp_path / "tokens", "".join(f"{name} {hashed(token)}\n" for name, token in tokens.items()).encode())
    with running(tls=ServerTls(tmp_path, "tls"), tokens=TokenFile(tmp_path / "tokens", "tokens")) as rig:
        yield Secured(rig, tmp_path, tokens)


class Robot:
    """B, at work: how long its answers take."""

    def __init__(self, door: Secured) -> None:
        self.round_trips_s: list[float] = []
        self.asked = 0
        self.problem = ""
        self._ending = threading.Event()
        self._door = door
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Robot:
        self._thread.start()
        assert eventually(lambda: len(self.round_trips_s) > 3 or self.problem) and not self.problem, self.standing()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(30)

    def _work(self) -> None:
        packer, value = wire.packer(), 0.0
        try:
            with self._door.connect("B") as mine:
                mine.recv(timeout=PATIENCE_S)
                while not self._ending.wait(0.05):
                    value = (value + 1) % 100
                    asked_s = time.monotonic()
                    mine.send(packer.pack(observation(value)))
                    self.asked += 1
                    answer = mine.recv(timeout=PATIENCE_S)
                    self.round_trips_s.append(time.monotonic() - asked_s)
                    assert isinstance(answer, bytes), answer
                    told = wire.unpack(answer)
                    assert told["actions"][0, 0] == value, "its own answer"
        except Exception as error:
            self.problem = repr(error)

    def standing(self) -> str:
        """Where its request is."""
        server, door, engine = self._door.rig.server, self._door.rig.door, self._door.rig.engine
        waits = {name: str(one._waits) for name, one in door._connections.items()}
        asked = f"asked {self.asked}, answered {len(self.round_trips_s)}; the engine was asked {len(engine.asked)}"
        seen = f"{server.num_waiting} wait; {waits}, refused {dict(server.refused)}, {self._door.rig.logged}"
        return f"{self.problem!r}; {asked}; {seen}"

    def is_served(self, during: Callable[[], Any]) -> Any:
        """Within its SLO, while that happens and shortly after; what `during` returns."""
        first = len(self.round_trips_s)
        found = during()
        assert eventually(lambda: len(self.round_trips_s) > first + 3 or self.problem) and not self.problem, self.standing()
        assert max(self.round_trips_s[first:]) < SLO_S
        return found


def test_intruders_are_refused_and_counted_and_the_robot_is_served(door: Secured) -> None:
    port = door.rig.door.port
    with Robot(door) as robot:

        def strangers() -> None:
            with pytest.raises((OSError, InvalidStatus, EOFError, ConnectionClosed, Exception), match=r".*"):
                connect(f"ws://127.0.0.1:{port}", open_timeout=5)  # without TLS
            foreign = ssl.create_default_context()
            with pytest.raises(ssl.SSLError):
                connect(door.url, ssl=foreign, additional_headers=door.key("A"))  # a client that trusts others tells us nothing
            for said in ({}, {"Authorization": "Api-Key " + "x" * 32}, {"Authorization": door.tokens["A"]}):
                with pytest.raises(InvalidHandshake) as refused:  # 401, or the end of the connection where that overtakes it
                    connect(door.url, ssl=door.trusted, additional_headers=said)
                assert not isinstance(refused.value, InvalidStatus) or refused.value.response.status_code == 401

        robot.is_served(strangers)
        assert eventually(lambda: door.refused("gateway_token") == 3)
        assert eventually(lambda: door.refused("gateway_no_request") >= 2)

        def large() -> None:
            """50 MB, and the word of 50 MB alone."""
            with door.connect("A") as mine, contextlib.suppress(ConnectionClosed, OSError):
                mine.recv()
                mine.send(bytes(50 << 20))
                mine.recv(timeout=20)

        robot.is_served(large)
        assert eventually(lambda: door.refused("frame_too_large") == 1)

        def flood() -> None:
            """As fast as it can, from a robot that may come in, for a second and until that is too much."""
            packer, begun_s = wire.packer(), time.monotonic()
            with contextlib.ExitStack() as stack:
                mine = [stack.enter_context(door.connect("A")) for _ in range(4)]
                while (since_s := time.monotonic() - begun_s) < 1.0 or (since_s < 20.0 and not refused()):
                    for one in mine:
                        with contextlib.suppress(ConnectionClosed):
                            one.send(packer.pack(observation(1)))

        def refused() -> int:
            return door.refused("gateway_busy") + door.refused("over_quota")

        robot.is_served(flood)
        assert refused() > 0

        def every_place() -> int:
            with contextlib.ExitStack() as stack:
                for number in range(40):
                    try:
                        stack.enter_context(door.connect("A"))
                    except InvalidHandshake as full:
                        assert not isinstance(full, InvalidStatus) or full.response.status_code == 429
                        return number
            return 40

        assert eventually(lambda: len(door.rig.door._connections) == 1), "whoever flooded is gone, on the door's side too"
        assert robot.is_served(every_place) == 16
        assert door.refused("gateway_client_connections") == 1


@pytest.mark.parametrize("many", [800, pytest.param(10_000, marks=pytest.mark.thorough)])
def test_thousands_of_silent_connections_take_no_place_and_few_descriptors(door: Secured, many: int) -> None:
    port, held = door.rig.door.port, min(300, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
    with Robot(door) as robot, contextlib.ExitStack() as stack:
        mine: list[socket.socket] = []

        def crowd() -> None:
            for number in range(many):
                one = socket.create_connection(("127.0.0.1", port), 20)
                one.sendall(b"\x16")  # the first byte of a handshake that goes on for ever
                mine.append(stack.enter_context(one))
                if number >= held:
                    mine.pop(0).close()

        robot.is_served(crowd)
        assert door.rig.door._entry.step.num_waiting <= MAX_WAITING
        assert eventually(lambda: door.refused("gateway_no_request") >= many - MAX_WAITING - held)
        with door.connect("A", open_timeout=20) as other:
            assert wire.unpack(other.recv(timeout=20))["action_names"] == ["a", "b"], "who has a token comes in meanwhile"


def test_a_token_that_is_taken_away_ends_its_connections_and_nobody_elses(door: Secured) -> None:
    with Robot(door) as robot, door.connect("A") as mine:
        mine.recv()
        robot.is_served(lambda: door.write_tokens("B"))
        with pytest.raises(ConnectionClosed):
            assert "taken away" in str(mine.recv(timeout=20))
            mine.recv(timeout=20)
        assert eventually(lambda: door.refused("gateway_revoked") == 1)
        with pytest.raises(InvalidHandshake):
            door.connect("A")
        robot.is_served(lambda: None)


def test_what_was_heard_cannot_be_said_again(door: Secured) -> None:
    """A session's requests count up: its old ones are refused where they come in, and so are those of a session that ended."""
    server = door.rig.server
    with door.connect("B") as mine:
        mine.recv()
        mine.send(wire.packer().pack(observation(1)))
        mine.recv(timeout=20)
        asked = door.rig.engine.asked[-1]
        name = asked.id.robot
        assert name.startswith("ws-B-"), "the log and the counters say whose it is"
        old = ObservationRequest(id=asked.id, stamp_ns=0, instruction="pick", state=np.zeros(2, np.float32), images=())
        with pytest.raises(BadMessageError) as refused, server.counting_refusals():
            server.submit(old, time.monotonic())
    assert server.refused[refused.value.kind] == 1


def test_a_model_elsewhere_is_asked_only_where_its_authority_is_trusted(door: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFM_TEST_TOKEN", door.tokens["A"])
    given = {"token_env": "RFM_TEST_TOKEN", "connections": 2}
    engine = remote(door.url, ca_file=str(door.folder / "ca.pem"), **given)
    try:
        assert engine.infer([row(3)])[0].chunk_robot[0, 0] == 3
    finally:
        engine.close()
    with pytest.raises(ModelError, match="cannot connect"):
        remote(door.url, **given)
    with pytest.raises(ConfigurationError, match=r"options\.ca_file: 'none\.pem' cannot be used"):
        remote(door.url, ca_file="none.pem", **given)
