"""JPEGs decoded no larger than a model needs: at which fraction, how far from a whole decoding, and who asks for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import simplejpeg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ros2_rfm_serving.engines.architectures.manifest import Images
from ros2_rfm_serving.engines.architectures.processor import cropped
from ros2_rfm_serving.engines.embedded.inputs import resized
from ros2_rfm_serving.operate.engines import load_engine
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.server.images import FACTORS, decode, scaled_px
from ros2_rfm_serving.types import EncodedImage, Image, InferenceRequest, ObservationRequest, RequestId, SessionRequest
from test.unit.fakes import CONTRACT, FakeEngine

MEAN_TOLERANCE, MOST_TOLERANCE = 1.5, 16.0
"""Of 255: pixels after resizing, on a picture like a camera's. docs/measurements/engines.md says so."""


def picture(height: int, width: int) -> Image:
    """Edges and slopes, at no multiple of a JPEG's blocks."""
    y, x = np.mgrid[:height, :width]
    slopes = np.stack([x / width, y / height, (x + y) / (width + height)], axis=2) * 200
    edges = (((x // 37) + (y // 53)) % 2)[..., None] * np.float32([40, 10, 55])
    return np.clip(slopes + edges, 0, 255).astype(np.uint8)


def jpeg(image: Image, quality: int = 90) -> EncodedImage:
    data = simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality=quality, colorsubsampling="420")
    return EncodedImage(camera="front", format="jpeg", data=data)


@settings(deadline=None, max_examples=60)
@given(st.integers(8, 400), st.integers(8, 400), st.tuples(st.integers(1, 300), st.integers(1, 300)))
def test_the_smallest_fraction_that_neither_side_forbids(width: int, height: int, least: tuple[int, int]) -> None:
    image = decode(jpeg(picture(height, width)), least)
    scaled = scaled_px(width, height, least)
    assert image.shape == (scaled[1], scaled[0], 3)
    if scaled[2] > 1:
        assert image.shape[1] >= least[0] and image.shape[0] >= least[1]
    for factor in (factor for factor in FACTORS if factor > scaled[2]):
        assert -(-width // factor) < least[0] or -(-height // factor) < least[1]


def test_without_a_size_and_for_pixels_everything_is_as_it_was() -> None:
    image = picture(480, 640)
    assert np.array_equal(decode(jpeg(image)), simplejpeg.decode_jpeg(jpeg(image).data, fastdct=True))
    raw = EncodedImage(camera="front", format="rgb8", data=image.tobytes(), height_px=480, width_px=640)
    assert np.array_equal(decode(raw, (96, 96)), image)


@pytest.mark.parametrize("size_px", [96, 160, 224])
def test_resized_pixels_are_those_of_a_whole_decoding_within_the_stated_tolerance(size_px: int) -> None:
    encoded = jpeg(picture(480, 640))
    whole, scaled = (resized(decode(encoded, least), size_px).astype(np.float32) for least in ((), (size_px, size_px)))
    apart = np.abs(whole - scaled)
    assert 0 < apart.mean() < MEAN_TOLERANCE and np.quantile(apart, 0.999) < MOST_TOLERANCE


class Sees(FakeEngine):
    """Remembers what it got."""

    def __init__(self, min_image_px: tuple[int, ...], size_px: int = 0) -> None:
        super().__init__()
        self.contract = replace(CONTRACT, cameras=("front",), state_size=0, min_image_px=min_image_px)
        self.fit_image = (lambda image: resized(image, size_px)) if size_px else None  # type: ignore[assignment]
        self.seen: list[Image] = []

    def infer(self, requests: list[InferenceRequest]):  # type: ignore[no-untyped-def]
        self.seen += [request.images["front"] for request in requests]  # type: ignore[misc]
        return super().infer(requests)


@pytest.mark.parametrize(
    ("least", "size_px", "shape"),
    [((), 0, (480, 640)), ((224, 224), 0, (240, 320)), ((), 224, (224, 224)), ((96, 96), 96, (96, 96))],
)
def test_an_engine_gets_what_its_contract_asks_for_and_fitted(least: tuple[int, ...], size_px: int, shape: tuple[int, int]) -> None:
    engine = Sees(least, size_px)
    server = ModelServer(ServerConfig(name="s"), engine)
    asks = SessionRequest(robot="r", component="system1", action_names=CONTRACT.action_names, cameras=("front",))
    epoch = server.open_session(asks).session_epoch
    request_id = RequestId(robot="r", component="system1", session_epoch=epoch, episode=1, sequence=1)
    empty = np.zeros(0, np.float32)
    image = jpeg(picture(480, 640))
    server.submit(ObservationRequest(id=request_id, stamp_ns=0, instruction="", state=empty, images=(image,)), 0.0)
    server.loop.step(lambda: 0.0)
    assert engine.seen[0].shape == (*shape, 3)
    if size_px and not least:
        assert np.array_equal(engine.seen[0], resized(decode(image), size_px))


def test_a_bundle_says_so_and_is_another_model_with_it() -> None:
    whole, scaled = (load_engine("rfm/metaworld-flow", options={"scaled_decoding": wanted}) for wanted in (False, True))
    assert whole.contract.min_image_px == () and scaled.contract.min_image_px == (96, 96)
    assert whole.contract.model_hash != scaled.contract.model_hash
    assert load_engine("rfm/metaworld-flow").contract.model_hash == whole.contract.model_hash
    assert whole.fit_image is not None and whole.fit_image(picture(480, 640)).shape == (96, 96, 3)


@pytest.mark.parametrize("crop", [1.0, 0.95, 0.949, 0.9, 0.5])
@pytest.mark.parametrize(("width_px", "height_px"), [(224, 224), (384, 256), (7, 5)])
def test_what_a_published_network_crops_is_no_smaller_than_what_it_sees(crop: float, width_px: int, height_px: int) -> None:
    geometry = Images(width_px=width_px, height_px=height_px, crop=crop)
    least_width_px, least_height_px = geometry.least_px
    kept = cropped(torch.zeros(3, least_height_px, least_width_px), crop)
    assert kept.shape[1] >= height_px and kept.shape[2] >= width_px
    assert (least_width_px - 1) * crop < width_px and (least_height_px - 1) * crop < height_px
