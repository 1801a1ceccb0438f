"""Images that are sent ahead of their batch, and JPEGs that the device decodes: a network gets the same, and nobody waits."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import simplejpeg
import torch
from torch import Tensor

from ros2_rfm_serving.engines.embedded.engine import load_embedded
from ros2_rfm_serving.engines.embedded.options import BundleOptions
from ros2_rfm_serving.engines.flow.device import settle
from ros2_rfm_serving.engines.flow.graphs import record_cuda
from ros2_rfm_serving.engines.nvjpeg import NvJpeg
from ros2_rfm_serving.engines.uploads import CopyEvent, CudaDevice, Device, UploadedImage, Uploads
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.types import EncodedImage, Image, InferenceRequest
from test.gpu import rig

LEVELS = 3
"""Of 255, between two decoders, in the mean of a smooth picture"""


class Host:
    """Stands for a GPU where there is none."""

    def buffer(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def copying(self) -> AbstractContextManager[None]:
        return nullcontext()

    def copied(self, host: Tensor) -> Tensor:
        return host.clone()

    def event(self) -> CopyEvent:
        return self

    def synchronize(self) -> None:
        return

    def received(self, pixels: Tensor, there: CopyEvent) -> Tensor:
        return pixels


def where(device: str) -> Device:
    return Host() if device == "cpu" else CudaDevice(device)


def ahead(engine: object, request: InferenceRequest) -> InferenceRequest:
    fit = getattr(engine, "fit_image", None) or (lambda image: image)
    return replace(request, images={camera: fit(image) for camera, image in request.images.items()})


def sent(request: InferenceRequest) -> bool:
    return all(isinstance(image, UploadedImage) for image in request.images.values())


@pytest.mark.parametrize("name", ["smolvla", "groot_n1_6"])
def test_chunks_are_the_same_with_images_sent_ahead(name: str, device: str) -> None:
    engine = rig.eager(name, device)
    asked = rig.requests(engine, 4)
    early = [ahead(engine, request) for request in asked]
    assert device == "cpu" or all(map(sent, early))
    np.testing.assert_allclose(rig.chunks(engine, early), rig.chunks(engine, asked), atol=rig.EXACT)
    mixed = [early[0], asked[1], *early[2:]]
    np.testing.assert_allclose(rig.chunks(engine, mixed), rig.chunks(engine, asked), atol=rig.EXACT)


def test_the_shipped_policys_are_too(device: str) -> None:
    options = BundleOptions(device=device, compile=False, cuda_graphs=False, trace=False)
    engine = load_embedded("flow", shipped("models") / "metaworld_flow", options)
    asked = rig.requests(engine, 3)
    early = [ahead(engine, request) for request in asked]
    assert device == "cpu" or all(map(sent, early))
    np.testing.assert_array_equal(rig.chunks(engine, early), rig.chunks(engine, asked))  # type: ignore[arg-type]


def picture(value: int, height: int = 120, width: int = 160) -> Image:
    return np.full((height, width, 3), value, np.uint8)


def test_each_image_arrives_whole_whatever_came_after_it(device: str) -> None:
    uploads = Uploads(where(device), num_slots=2)
    values = [(31 * i) % 256 for i in range(200)]
    images = [uploads.send(picture(value)) for value in values]
    for start in range(0, 200, 20):
        there = uploads.batch(images[start : start + 20])
        assert there.amin((1, 2, 3)).tolist() == there.amax((1, 2, 3)).tolist() == values[start : start + 20]


def test_threads_send_while_batches_are_read(device: str) -> None:
    uploads = Uploads(where(device), lambda pixels: pixels.float(), num_slots=3)
    wrong: list[int] = []

    def send(first: int) -> None:
        for i in range(50):
            image = uploads.send(picture((first + i) % 256, 64 + i))
            there = uploads.batch([image])
            if there.amin() != (first + i) % 256 or there.amax() != (first + i) % 256:
                wrong.append(first + i)

    threads = [threading.Thread(target=send, args=(60 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_image_is_there_before_what_the_device_was_doing_is_done(device: str) -> None:
    """On a CPU nothing runs beside anything: what it says is the same."""
    uploads = Uploads(where(device))
    uploads.send(picture(1))
    settle(device)
    rig.busy(device)
    computed = None if device == "cpu" else torch.cuda.current_stream(device).record_event()
    image = uploads.send(picture(9))
    assert isinstance(image, UploadedImage) and image.twin is not None
    image.twin.there.synchronize()
    assert computed is None or not computed.query(), "the copy waited for what the device computed"
    assert uploads.batch([image]).unique().tolist() == [9]


def test_memory_does_not_grow_with_what_is_sent(device: str, requests_count: int) -> None:
    uploads = Uploads(where(device), lambda pixels: pixels.float())
    used: list[int] = []
    for i in range(requests_count):
        image = uploads.send(picture(i % 256))
        if i % 3:  # others are superseded
            uploads.batch([image])
        if i % 100 == 99:
            del image
            settle(device)
            used.append(0 if device == "cpu" else torch.cuda.memory_allocated(device))
    assert used[-1] <= used[1]


def test_a_graph_is_recorded_while_images_are_sent(device: str) -> None:
    """On a CPU there is none to record."""
    record = record_cuda if device != "cpu" else lambda function, _: function
    uploads, over = Uploads(where(device), lambda pixels: pixels.float(), num_slots=2), threading.Event()
    problems: list[BaseException] = []

    def send() -> None:
        try:
            i = 0
            while not over.is_set():
                assert isinstance(uploads.send(picture(i % 256, 64 + i % 300)), UploadedImage)
                i += 1
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        x = torch.rand(64, 64, device=device)
        for _ in range(10):
            replay = record(lambda given: (given @ given,), (x,))
            torch.testing.assert_close(replay(x)[0], x @ x)
    finally:
        over.set()
        thread.join()
    assert not problems


def jpeg(image: Image, **options: object) -> EncodedImage:
    return EncodedImage(camera="front", format="jpeg", data=simplejpeg.encode_jpeg(image, quality=90, **options))


def smooth(height: int, width: int) -> Image:
    y, x = np.mgrid[:height, :width]
    return np.stack([255 * x / width, 255 * y / height, 127 + 0 * x], axis=2).astype(np.uint8)


class StandIn:
    ImageReadMode = SimpleNamespace(RGB="RGB")

    @staticmethod
    def decode_jpeg(data: Tensor, mode: str, device: str) -> Tensor:
        assert mode == "RGB" and device == "cpu"
        return torch.from_numpy(simplejpeg.decode_jpeg(data.numpy().tobytes())).permute(2, 0, 1)


@pytest.fixture
def decoding(device: str) -> tuple[NvJpeg, Uploads]:
    """By torchvision itself; on a CPU by libjpeg in its place."""
    uploads = Uploads(where(device))
    try:
        return NvJpeg(uploads, where(device), device, library=StandIn if device == "cpu" else None), uploads
    except ModelError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("size", [(480, 640), (481, 639), (17, 33), (1, 1)])
@pytest.mark.parametrize("sampling", ["420", "444"])
def test_a_decoded_image_is_the_hosts(decoding: tuple[NvJpeg, Uploads], size: tuple[int, int], sampling: str) -> None:
    decoder, uploads = decoding
    encoded = jpeg(smooth(*size), colorsubsampling=sampling)
    image, expected = decoder(encoded), simplejpeg.decode_jpeg(encoded.data)
    assert image is not None and image.shape == expected.shape
    assert np.abs(image.astype(float) - expected).mean() < LEVELS
    np.testing.assert_array_equal(uploads.batch([image])[0].cpu().numpy(), image)


def test_a_grey_one_has_three_equal_colours(decoding: tuple[NvJpeg, Uploads]) -> None:
    decoder, _ = decoding
    grey = np.ascontiguousarray(smooth(48, 64)[..., :1])
    image = decoder(jpeg(grey, colorspace="Gray"))
    assert image is None or (image.shape == (48, 64, 3) and np.ptp(image, axis=2).max() <= 1)


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_half_of_one_is_left_to_the_host(decoding: tuple[NvJpeg, Uploads], share: float) -> None:
    decoder, _ = decoding
    whole = jpeg(smooth(480, 640))
    assert decoder(replace(whole, data=whole.data[: int(share * len(whole.data))])) is None
    assert decoder(whole) is not None


def test_what_is_decoded_spoils_nothing_that_is_still_read(decoding: tuple[NvJpeg, Uploads], device: str) -> None:
    """pytorch/vision#9606: memory that the calling stream has freed and not yet read."""
    decoder, uploads = decoding
    encoded = jpeg(smooth(480, 640))
    for _ in range(2 if device == "cpu" else 20):
        held = [torch.full((480, 640, 3), value, dtype=torch.uint8, device=device) for value in range(1, 9)]
        settle(device)
        rig.busy(device)
        sums = [tensor.long().sum() for tensor in held]
        early = [decoder(encoded) for _ in range(4)]
        del held
        later = [decoder(encoded) for _ in range(4)]
        assert [int(total) for total in sums] == [480 * 640 * 3 * value for value in range(1, 9)]
        there = uploads.batch([image for image in (*early, *later) if image is not None])
        assert len(there) == 8 and all(torch.equal(each, there[0]) for each in there)
