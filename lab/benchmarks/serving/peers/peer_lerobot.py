"""LeRobot's asynchronous inference over gRPC: its `PolicyServer` with the sleeping model as its policy.

Images travel raw, pickled, which is its only format. It is made for one robot per server; the result with several robots is part of
the measurement. Its default of at least 33 ms per chunk (`inference_latency`) is switched off.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import time
from collections.abc import Callable
from concurrent import futures
from types import SimpleNamespace
from typing import Any

import torch

for _name in ("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor", "qnms(Tensor a, Tensor b, float c) -> Tensor"):
    torch.library.define(f"torchvision::{_name.partition('(')[0]}", _name[_name.index("(") :])
os.chdir(tempfile.mkdtemp())  # it writes its logs into the working directory

import cv2  # noqa: E402
import grpc  # noqa: E402
from lerobot.async_inference.configs import PolicyServerConfig  # noqa: E402
from lerobot.async_inference.helpers import TimedObservation  # noqa: E402
from lerobot.async_inference.policy_server import PolicyServer  # noqa: E402
from lerobot.transport import services_pb2, services_pb2_grpc  # noqa: E402
from lerobot.transport.utils import grpc_channel_options, send_bytes_in_chunks  # noqa: E402

JOINTS = [f"joint_{i}" for i in range(14)]
CAMERAS = ("camera_0", "camera_1")
HEIGHT_PX, WIDTH_PX = 480, 640
FEATURES = {
    "observation.state": {"dtype": "float32", "shape": (len(JOINTS),), "names": JOINTS},
    **{f"observation.images.{c}": {"dtype": "image", "shape": (HEIGHT_PX, WIDTH_PX, 3), "names": None} for c in CAMERAS},
}


class StubbedServer(PolicyServer):
    """Server in which everything but the policy and its processors is LeRobot's."""

    def __init__(self, config: PolicyServerConfig, infer: Callable[..., Any]) -> None:
        super().__init__(config)
        shapes = {f"observation.images.{c}": SimpleNamespace(shape=(3, HEIGHT_PX, WIDTH_PX)) for c in CAMERAS}
        self.lerobot_features, self.actions_per_chunk, self.device = FEATURES, 50, "cpu"
        self.policy = SimpleNamespace(
            config=SimpleNamespace(image_features=shapes),
            predict_action_chunk=lambda observation: torch.from_numpy(infer([observation["observation.state"][0].numpy()])[0]),
        )
        self.preprocessor = self.postprocessor = lambda value: value


def serve(infer: Callable[..., Any], port: int, ready: Callable[[], None]) -> None:
    run(StubbedServer, infer, port, ready)


def run(kind: type[StubbedServer], infer: Callable[..., Any], port: int, ready: Callable[[], None]) -> None:
    config = PolicyServerConfig(host="127.0.0.1", port=port, fps=30, inference_latency=0.0)
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    services_pb2_grpc.add_AsyncInferenceServicer_to_server(kind(config, infer), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    ready()
    server.wait_for_termination()


def connect(port: int, images: dict[str, bytes]) -> Callable[[Any], Any]:
    import numpy as np

    raw = {camera: cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) for camera, data in images.items()}
    return asking(port, raw)


def asking(port: int, images: dict[str, Any]) -> Callable[[Any], Any]:
    """Return a function of one request. images: camera -> image in the server's format."""
    channel = grpc.insecure_channel(f"127.0.0.1:{port}", grpc_channel_options())
    stub = services_pb2_grpc.AsyncInferenceStub(channel)
    stub.Ready(services_pb2.Empty())

    def request(state: Any) -> Any:
        values = dict(zip(JOINTS, state.tolist(), strict=True))
        observation = TimedObservation(
            timestamp=time.time(), timestep=int(state[1]), observation={**images, **values, "task": "pick it up"}, must_go=True
        )
        while True:  # an empty answer means that another robot's observation replaced this one, so it is sent again
            stub.SendObservations(send_bytes_in_chunks(pickle.dumps(observation), services_pb2.Observation, silent=True))
            answer = stub.GetActions(services_pb2.Empty())
            if answer.data:
                return torch.stack([timed.get_action() for timed in pickle.loads(answer.data)]).numpy()

    return request
