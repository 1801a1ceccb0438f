"""The websocket door under broken handshakes and frames, one after the other, beside a client that is served all the time."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ros2_rfm_serving import wire
from test.ros.door_rig import eventually, observation, running
from test.unit.mutations import VALUES, damaged

QUICK = settings(derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
VALID = wire.packer().pack(observation(1.0))
CONTINUATION, TEXT, BINARY, CLOSE, PING = 0x0, 0x1, 0x2, 0x8, 0x9
WITHIN_S = 20.0


class Frame(NamedTuple):
    opcode: int
    payload: bytes
    fin: bool = True
    reserved: int = 0
    masked: bool = True
    length: int | None = None
    """That it says it has; None: the truth."""

    def sent(self) -> bytes:
        said = len(self.payload) if self.length is None else self.length
        short, rest = (
            (said, b"") if said < 126 else (126, struct.pack(">H", said)) if said < 1 << 16 else (127, struct.pack(">Q", said))
        )
        mask = bytes(4) if self.masked else b""
        first = bytes([self.fin << 7 | self.reserved << 4 | self.opcode, self.masked << 7 | short])
        return first + rest + mask + self.payload


PAYLOADS = st.one_of(
    st.just(VALID),
    damaged([VALID]),
    st.binary(max_size=130),
    st.dictionaries(st.sampled_from(["prompt", "observation/state", "session", "reset"]), VALUES, max_size=3).map(
        wire.packer().pack
    ),
    st.integers(0, 0xFFFF).map(lambda code: struct.pack(">H", code) + b"\xff"),
)
FRAMES = st.builds(
    Frame,
    st.one_of(st.sampled_from([CONTINUATION, TEXT, BINARY, BINARY, CLOSE, PING]), st.integers(0, 15)),
    PAYLOADS,
    fin=st.booleans(),
    reserved=st.sampled_from([0, 0, 0, 1, 4, 7]),
    masked=st.sampled_from([True, True, True, False]),
    length=st.sampled_from([None, None, None, 0, 5, 125, 70_000, 1 << 40, (1 << 63) + 1, (1 << 64) - 1]),
)
WHOLE = PAYLOADS.map(lambda payload: Frame(BINARY, payload))
CONVERSATIONS = st.one_of(
    st.lists(st.one_of(WHOLE, WHOLE, FRAMES), min_size=1, max_size=5).map(
        lambda frames: HANDSHAKE + b"".join(frame.sent() for frame in frames)
    ),
    damaged([HANDSHAKE, HANDSHAKE + Frame(BINARY, VALID).sent(), b"\x16\x03\x01" + bytes(50)]),
)


def say(port: int, data: bytes, *, listens: bool) -> None:
    """Says all of it, hears what comes until the door has had enough, or leaves at once."""
    with socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as stranger, contextlib.suppress(ConnectionError):
        stranger.sendall(data)
        if listens:
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(1 << 16):
                pass


def test_whatever_one_client_sends_the_other_is_served() -> None:
    with running() as rig:
        good = rig.client()
        asked = iter(range(1_000_000))

        @settings(QUICK, max_examples=120)
        @given(CONVERSATIONS, st.booleans())
        def attack(data: bytes, listens: bool) -> None:
            say(rig.door.port, data, listens=listens)
            value = next(asked)
            told: dict[str, Any] = good.infer(observation(value))
            assert told["actions"][0, 0] == value

        attack()
        (own,) = eventually(lambda: len(rig.server.session_names()) == 1 and rig.server.session_names())
        good._ws.close()
        assert eventually(lambda: not rig.server.session_names()), own
        refused = rig.server.refused
        assert refused["gateway_error"] == 0 and all(refused[kind] for kind in ("bad_frame", "bad_keys")), refused
