"""On a CPU, too, a published architecture's images are made ready by whoever decodes them: the engine's thread only stacks them."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from torch import Tensor

from ros2_rfm_serving.engines.architectures import processor
from ros2_rfm_serving.engines.architectures.engine import load_architecture
from ros2_rfm_serving.engines.architectures.policy import ArchitecturePolicy
from ros2_rfm_serving.engines.uploads import UploadedImage
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.types import EncodedImage, ObservationRequest, RequestId, SessionRequest
from test.engines.parity import common


@pytest.mark.parametrize("name", common.RECORDED)
def test_images_that_were_made_ready_give_the_same_bits(name: str, folders: dict[str, Path]) -> None:
    policy = common.policy_of(folders[name] / "bundle")
    requests = common.requests_of(common.read(name), policy.contract)
    early = [
        replace(request, images={camera: policy.fit_image(image) for camera, image in request.images.items()})  # type: ignore[arg-type]
        for request in requests
    ]
    assert all(isinstance(image, UploadedImage) for request in early for image in request.images.values())
    expected = policy.processor.observation(requests).images
    assert torch.equal(policy.processor.observation(early).images, expected)
    assert torch.equal(policy.processor.observation([early[0], *requests[1:]]).images, expected)


SIZES = [(1, 1), (1, 7), (9, 1), (3, 5), (33, 47), (480, 640), (1, 3000), (3000, 2), (2160, 64)]


@pytest.mark.parametrize("name", common.RECORDED)
def test_images_of_any_sizes_share_a_batch_and_each_is_what_it_is_alone(name: str, folders: dict[str, Path]) -> None:
    """Cropped to a pixel, a line, or padded all around; each camera of each row has another size, and half of them were sent."""
    policy = common.policy_of(folders[name] / "bundle")
    blank, cameras, rng = (
        common.requests_of(common.read(name), policy.contract)[0],
        policy.contract.cameras,
        np.random.default_rng(0),
    )
    requests = [
        replace(
            blank,
            images={
                camera: rng.integers(256, size=(*SIZES[(row + i) % len(SIZES)], 3)).astype(np.uint8)
                for i, camera in enumerate(cameras)
            },
        )
        for row in range(len(SIZES))
    ]
    mixed = [
        replace(
            request,
            images={c: policy.fit_image(image) if (row + i) % 2 else image for i, (c, image) in enumerate(request.images.items())},
        )  # type: ignore[arg-type]
        for row, request in enumerate(requests)
    ]
    pixels = policy.processor.observation(mixed).images
    assert torch.isfinite(pixels).all()
    for row, request in enumerate(requests):
        assert torch.equal(pixels[row], policy.processor.observation([request]).images[0])


def test_the_engines_thread_resizes_nothing(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load_architecture("smolvla", folders["smolvla"] / "bundle")
    assert isinstance(engine.model, ArchitecturePolicy)
    by: list[str] = []
    plain = processor.fitted

    def watched(image: Tensor, geometry: Any) -> Tensor:
        by.append(threading.current_thread().name)
        return plain(image, geometry)

    server, contract = ModelServer(ServerConfig(name="s"), engine), engine.contract
    asks = SessionRequest(
        robot="r", component="system1", action_names=contract.action_names, cameras=contract.cameras, state_size=contract.state_size
    )
    epoch = server.open_session(asks).session_epoch
    data = simplejpeg.encode_jpeg(np.zeros((48, 64, 3), np.uint8))
    observation = ObservationRequest(
        id=RequestId(robot="r", component="system1", session_epoch=epoch, episode=1, sequence=1),
        stamp_ns=0,
        instruction="push",
        state=np.zeros(contract.state_size, np.float32),
        images=tuple(EncodedImage(camera=camera, format="jpeg", data=data) for camera in contract.cameras),
    )
    monkeypatch.setattr(processor, "fitted", watched)
    decoder = threading.Thread(target=lambda: server.submit(observation, 0.0), name="decoder")
    decoder.start()
    decoder.join()
    assert by == ["decoder"] * len(contract.cameras)
    assert len(server.loop.step(lambda: 0.0)) == 1
    assert by == ["decoder"] * len(contract.cameras)
