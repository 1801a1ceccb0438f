"""The gateway without sockets: `wire.py`, `server/openpi/protocol.py` and all behind them, up to the reply.

First byte: the model, whether its engine decodes images itself, and whether the client speaks vLLM-Omni's dialect; the rest:
frames of one client, one after the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ros2_rfm_serving import wire
from ros2_rfm_serving.engines.emulated import EmulatedEngine, EmulatedSpec
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.server.openpi.protocol import OpenpiClient
from ros2_rfm_serving.server.openpi.vllm_omni import VllmOmniClient, VllmOmniTerms
from ros2_rfm_serving.types import OutputKind
from test.unit.fakes import JPEG

SEPARATOR = b"\xc1\xc1"
"""No msgpack begins a value with this."""
MAX_FRAMES = 6
NAMES = {"arm": "state", "hand": "state", "wrist": "front", "depth": ""}
SPECS = (
    EmulatedSpec(model="acts", action_names=("x", "y"), cameras=("front",), state_size=3, chunk_length=4),
    EmulatedSpec(model="acts blindly", action_names=("x",), state_size=1, chunk_length=4),
    EmulatedSpec(model="judges", output=OutputKind.JUDGEMENT, cameras=("front",)),
    EmulatedSpec(model="plans", output=OutputKind.PLAN),
)


def observation(spec: EmulatedSpec, **changes: Any) -> dict[str, Any]:
    seen: dict[str, Any] = {"prompt": "pick"}
    if spec.state_size:
        seen["observation/state"] = np.zeros(spec.state_size)
    return {**seen, **{f"observation/images/{camera}": JPEG for camera in spec.cameras}, **changes}


def server_of(spec: EmulatedSpec, *, encoded: bool) -> ModelServer:
    engine = EmulatedEngine(spec, lambda size: 0.0, lambda seconds: None)
    engine.takes_encoded = encoded
    return ModelServer(ServerConfig(name="s"), engine)


def client_of(server: ModelServer, name: str, kind: int) -> OpenpiClient:
    if kind // len(SPECS) // 2 % 2:
        return VllmOmniClient(server, name, {**NAMES, "video/wrist": "front", "state/arm": "state"}, VllmOmniTerms())
    return OpenpiClient(server, name, NAMES)


def seeds() -> list[bytes]:
    pack, acts = wire.packer().pack, SPECS[0]
    words = {"conditioning": "guided", "guidance": {"schedule": "exp", "max_weight": 5.0}, "action_names": ["x", "y"], "slo_s": 1.0}
    report = {"executed_steps": 3, "executing_s": 0.5, "remaining_s": -0.5, "last_wait_s": 0.1}
    pixels = np.zeros((4, 6, 3), np.uint8)
    messages = [
        observation(acts, **{"observation/images/front": pixels}),
        observation(acts, **{"observation/images/front": pixels.transpose(2, 0, 1)}, session=words, execution_report=report),
        observation(acts, prev_chunk_left_over=np.ones((2, 2)), inference_delay=1, episode="a"),
        {"arm": [1, 2], "hand": np.float32(3), "wrist": JPEG, "depth": 0},
        {"observation": {"state": [1, 2.5, True], "images": {"front": np.frombuffer(JPEG, np.uint8)}}, "reset": True},
    ]
    alone = [bytes([0]) + pack(message) for message in messages]
    others = [bytes([i]) + pack(observation(spec)) for i, spec in enumerate(SPECS)]
    together = SEPARATOR.join([pack({"reset": True}), pack(messages[2]), pack({"reset": True, "episode": 7}), pack(messages[1])])
    nested = {"video": {"wrist": pixels[None, None]}, "state": {"arm": np.zeros((1, 1, 3))}, "language": {"task": [["pick"]]}}
    omni = [{**nested, "session_id": "a"}, {"endpoint": "reset"}, {**nested, "video": {"wrist": pixels}, "endpoint": "infer"}]
    dialect = [bytes([8]) + SEPARATOR.join(map(pack, omni)), *(bytes([8]) + pack(message) for message in (*omni, *messages))]
    return [*alone, *others, bytes([0]) + together, bytes([4]) + pack(messages[0]), *dialect]


def check(data: bytes) -> None:
    kind = data[0] if data else 0
    spec = SPECS[kind % len(SPECS)]
    server, pack = server_of(spec, encoded=kind // len(SPECS) % 2 == 1), wire.packer().pack
    for i, frame in enumerate(data[1:].split(SEPARATOR)[:MAX_FRAMES]):
        client = client_of(server, f"ws_{i}", kind)
        try:
            _serve(server, client, frame)
            _serve(server, client, pack(observation(spec)))
        except RfmError as error:  # said to the client, whose connection ends
            str(error).encode()
        finally:
            client.close()
        server.check_integrity()
        assert not server.session_names() and not server.num_waiting
    good = OpenpiClient(server, "ws_good", NAMES)
    told = _serve(server, good, pack(observation(spec)))
    assert told.keys() & {"actions", "verdict", "subgoals"}


def _serve(server: ModelServer, client: OpenpiClient, frame: bytes) -> Any:
    """What the client is told. Raises: `RfmError`."""
    asked = client.ask(frame)
    if asked is None:
        return wire.RESET_REPLY
    server.submit(asked, 0.0)
    (reply,) = server.loop.step(lambda: 0.0)
    assert reply.id == asked.id
    return wire.unpack_value(wire.packer().pack(client.answer(reply)))
