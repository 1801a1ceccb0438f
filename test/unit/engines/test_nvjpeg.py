"""JPEGs that a device decodes, with a stand-in for torchvision: what it takes, what the host is left with, what engines get."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
import torch.nn.functional as F
from torch import Tensor

from ros2_rfm_serving.engines.architectures.manifest import Images
from ros2_rfm_serving.engines.architectures.processor import cropped, fitted
from ros2_rfm_serving.engines.embedded.inputs import NetworkInputs, resized, resized_there
from ros2_rfm_serving.engines.embedded.options import BundleOptions
from ros2_rfm_serving.engines.nvjpeg import PROBE, NvJpeg
from ros2_rfm_serving.engines.uploads import UploadedImage, Uploads
from ros2_rfm_serving.errors import BadMessageError, ModelError
from ros2_rfm_serving.server.images import decode
from ros2_rfm_serving.server.intake import readying
from ros2_rfm_serving.types import EncodedImage, Image
from test.unit.engines.test_uploads import Late
from test.unit.fakes import CONTRACT
from test.unit.server.test_scaled_decoding import jpeg, picture


class Library:
    """`torchvision.io` with nvJPEG: a list of one thread at a time."""

    ImageReadMode = SimpleNamespace(RGB="rgb")

    def __init__(self) -> None:
        self.asked, self.refuses = list[int](), False
        self._inside = threading.Lock()

    def decode_jpeg(self, input: Tensor, mode: object, device: str) -> Tensor:
        assert input.dtype == torch.uint8 and input.dim() == 1 and input.device.type == "cpu" and mode == "rgb" and device == "cuda"
        assert self._inside.acquire(blocking=False), "two at once"
        try:
            self.asked.append(input.numel())
            if self.refuses:
                raise RuntimeError("Error while decoding JPEG images: Failed to decode jpeg stream: 4")
            decoded = simplejpeg.decode_jpeg(input.numpy().tobytes(), fastdct=True)
            return torch.from_numpy(decoded).permute(2, 0, 1)
        finally:
            self._inside.release()


def decoder(library: Library, uploads: Uploads | None = None, **options: Any) -> NvJpeg:
    return NvJpeg(uploads or Uploads(Late()), Late(), "cuda", library=library, **options)


def test_pixels_are_here_and_there() -> None:
    library, uploads = Library(), Uploads(Late())
    encoded = jpeg(picture(48, 64))
    image = decoder(library, uploads)(encoded)
    assert isinstance(image, UploadedImage) and np.array_equal(image, decode(encoded))
    assert np.array_equal(uploads.batch([image])[0], decode(encoded))
    assert library.asked == [len(PROBE), len(encoded.data)]


def test_what_is_not_whole_or_not_taken_is_left_to_the_host() -> None:
    library = Library()
    decoded, encoded = decoder(library), jpeg(picture(48, 64))
    assert decoded(replace(encoded, data=encoded.data[:-2])) is None and decoded(replace(encoded, data=b"")) is None
    assert library.asked == [len(PROBE)]
    library.refuses = True
    assert decoded(encoded) is None
    library.refuses = False
    assert decoded(encoded) is not None


@pytest.mark.parametrize(
    ("library", "said"), [(SimpleNamespace(), "AttributeError"), (Library(), "RuntimeError: Error while decoding")]
)
def test_a_torchvision_that_cannot_is_an_error_at_start(library: Any, said: str) -> None:
    library.refuses = True
    with pytest.raises(ModelError, match=rf"device_decoding.*{said}.*install one with nvJPEG"):
        decoder(library)


def test_without_torchvision_it_is_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torchvision.io", None)
    with pytest.raises(ModelError, match=r"ModuleNotFoundError|ImportError"):
        NvJpeg(Uploads(Late()), Late(), "cuda")


def test_threads_take_turns() -> None:
    decoded, encoded = decoder(Library()), jpeg(picture(48, 64))
    found: list[Image | None] = []
    threads = [threading.Thread(target=lambda: found.extend(decoded(encoded) for _ in range(20))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80 and all(image is not None and np.array_equal(image, decode(encoded)) for image in found)


def test_a_server_asks_it_first_and_checks_before() -> None:
    library, encoded = Library(), jpeg(picture(48, 64))
    ready = readying(CONTRACT, False, lambda image: resized(image, 16), decoder(library))
    there = ready(encoded)
    assert isinstance(there, UploadedImage) and there.shape == (48, 64, 3)
    raw = EncodedImage(camera="front", format="rgb8", data=picture(48, 64).tobytes(), height_px=48, width_px=64)
    assert ready(raw).shape == (16, 16, 3), "pixels are no JPEG"  # type: ignore[union-attr]
    library.refuses = True
    fallen_back = ready(encoded)
    assert not isinstance(fallen_back, UploadedImage) and np.array_equal(fallen_back, resized(decode(encoded), 16))  # type: ignore[arg-type]
    asked = len(library.asked)
    for bad in (replace(encoded, data=b"no JPEG" + encoded.data[-2:]), replace(encoded, format="png")):
        with pytest.raises(BadMessageError):
            ready(bad)
    assert len(library.asked) == asked, "nobody decodes what has no header"
    with pytest.raises(BadMessageError, match="not a JPEG"):
        ready(replace(encoded, data=encoded.data[: len(encoded.data) // 2]))


def test_an_embedded_network_gets_the_same_images_sent_ahead_or_not() -> None:
    plain, sending = (NetworkInputs(("a", "b"), 32, (), 4, "cpu") for _ in range(2))
    sending.uploads = Uploads(Late())
    images = [{"a": picture(48, 64), "b": picture(32, 32)}, {"a": picture(40, 30), "b": picture(33, 31)}]
    rows: list[Any] = [SimpleNamespace(images=each) for each in images]
    ahead: list[Any] = [
        SimpleNamespace(images={camera: sending.fit_image(image) for camera, image in row.items()}) for row in images
    ]
    assert all(isinstance(image, UploadedImage) for row in ahead for image in row.images.values())
    expected = plain.images(rows)
    assert torch.equal(sending.images(rows), expected) and torch.equal(sending.images(ahead), expected)
    assert sending.images([]).shape == (0, 2, 32, 32, 3)


@pytest.mark.parametrize("size_px", [32, 96, 224])
def test_made_small_on_a_device_an_image_is_within_a_level(size_px: int) -> None:
    image = picture(480, 640)
    here, there = resized(image, size_px), resized_there(torch.from_numpy(image), size_px)
    assert there.shape == (size_px, size_px, 3) and there.dtype == torch.uint8
    assert int(np.abs(here.astype(int) - there.numpy()).max()) <= 1


@pytest.mark.parametrize("fit", ["stretch", "pad", "pad_top_left"])
def test_a_published_networks_image_is_the_same_sent_ahead_or_not(fit: Any) -> None:
    geometry = Images(height_px=24, width_px=32, fit=fit, crop=0.9)
    uploads, image = Uploads(Late(), lambda pixels: fitted(pixels, geometry)), picture(48, 64)

    class Prompt(Late):
        def copied(self, host: Tensor) -> Tensor:
            super().copied(host)
            return host.clone()

    ahead = Uploads(Prompt(), lambda pixels: fitted(pixels, geometry))
    expected = fitted(torch.from_numpy(image), geometry)
    assert torch.equal(uploads.batch([image])[0], expected)
    assert torch.equal(ahead.batch([ahead.send(image)])[0], expected)


def fitted_step_by_step(image: Image, geometry: Images) -> Tensor:
    """Nothing in place, nothing left out."""
    pixels = cropped(torch.from_numpy(image).permute(2, 0, 1).contiguous().float() / 255, geometry.crop)
    height, width = pixels.shape[1:]
    size = (geometry.height_px, geometry.width_px)
    if geometry.fit != "stretch":
        ratio = max(width / size[1], height / size[0])
        size = (max(1, int(height / ratio)), max(1, int(width / ratio)))
    if (height, width) != size:
        resized = F.interpolate(pixels[None], size, mode="bilinear", antialias=geometry.antialias, align_corners=False)
        pixels = resized[0].clamp(0, 1)
    pixels = (pixels * 255).floor() / 255 if geometry.whole else pixels
    rest = (geometry.height_px - size[0], geometry.width_px - size[1])
    before = rest if geometry.fit == "pad_top_left" else (rest[0] // 2, rest[1] // 2)
    return F.pad(pixels, (before[1], rest[1] - before[1], before[0], rest[0] - before[0]))


@pytest.mark.parametrize("shape", [(480, 640), (240, 320), (24, 32), (13, 50)])
@pytest.mark.parametrize("fit", ["stretch", "pad", "pad_top_left"])
@pytest.mark.parametrize(("antialias", "crop", "whole"), [(True, 1.0, False), (False, 1.0, False), (True, 0.949, True)])
def test_a_published_networks_image_is_bit_for_bit_what_its_steps_give(
    shape: tuple[int, int], fit: Any, antialias: bool, crop: float, whole: bool
) -> None:
    geometry = Images(height_px=24, width_px=32, fit=fit, antialias=antialias, crop=crop, whole=whole)
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    kept = image.copy()
    assert torch.equal(fitted(torch.from_numpy(image), geometry), fitted_step_by_step(image, geometry))
    assert np.array_equal(image, kept)


def test_it_wants_a_gpu_and_whole_images_and_makes_another_model() -> None:
    with pytest.raises(ModelError, match=r"device_decoding needs a GPU"):
        BundleOptions(device="cpu", device_decoding=True).on_device("m")
    with pytest.raises(ModelError, match=r"leave it or options.scaled_decoding out"):
        BundleOptions(device="cpu", device_decoding=True, scaled_decoding=True).on_device("m")
    assert BundleOptions(device_decoding=True).changes({}) == {"device_decoding": True} and not BundleOptions().changes({})
