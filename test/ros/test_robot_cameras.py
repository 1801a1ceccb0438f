"""A robot's cameras over real messages: every encoding, and what is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import simplejpeg
from sensor_msgs.msg import Image

from ros2_rfm_serving.ros.robot import cameras
from ros2_rfm_serving.ros.robot.cameras import CameraConfig, CameraSet
from ros2_rfm_serving.ros.wire import convert
from ros2_rfm_serving.types import MAX_ENCODED_BYTES

from .pictures import BLUE, HEIGHT, RED, WIDTH, Eye, compressed, decoded, halves, png, raw, scene, sent


@pytest.mark.parametrize(
    "message",
    [
        raw(scene(), "rgb8"),
        raw(scene(), "rgb8", padding=7),
        raw(scene()[:, :, ::-1], "bgr8"),
        raw(scene()[:, :, ::-1], "bgr8", padding=13),
        compressed(simplejpeg.encode_jpeg(scene(), quality=95), "rgb8; jpeg compressed bgr8"),
        compressed(simplejpeg.encode_jpeg(np.ascontiguousarray(scene()[:, :, ::-1]), quality=95, colorspace="BGR"), "jpg"),
        compressed(png(scene()), "bgr8; png compressed bgr8"),
    ],
    ids=["rgb8", "rgb8 padded", "bgr8", "bgr8 padded", "jpeg", "jpeg from bgr", "png"],
)
@pytest.mark.parametrize("max_size_px", [640, 32])
def test_red_stays_red(message: Any, max_size_px: int) -> None:
    pixels = decoded(Eye(max_size_px=max_size_px).see(message))
    assert pixels.shape == ((HEIGHT, WIDTH, 3) if max_size_px == 640 else (24, 32, 3))
    left, right = halves(pixels)
    assert np.allclose(left, RED, atol=6) and np.allclose(right, BLUE, atol=6)


@pytest.mark.parametrize("padding", [0, 5])
def test_grey_stays_grey(padding: int) -> None:
    grey = np.full((HEIGHT, WIDTH), 77, np.uint8)
    grey[:, WIDTH // 2 :] = 200
    left, right = halves(decoded(Eye().see(raw(grey, "mono8", padding=padding))))
    assert np.allclose(left, 77, atol=3) and np.allclose(right, 200, atol=3)


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("big_endian", [False, True])
def test_depth_becomes_grey_by_its_range_in_either_byte_order(padding: int, big_endian: bool) -> None:
    depth_mm = np.full((HEIGHT, WIDTH), 500, ">u2" if big_endian else "<u2")
    depth_mm[:, WIDTH // 2 :] = 60_000
    depth_mm[:, : WIDTH // 4] = 0
    pixels = decoded(Eye().see(raw(depth_mm, "16UC1", padding=padding, big_endian=big_endian)))
    assert np.allclose(pixels[:, 20:28].mean(), 50, atol=2)  # 0.5 m of 2.55 m
    assert np.allclose(pixels[:, -20:].mean(), 255, atol=2)
    assert np.allclose(pixels[:, :10].mean(), 0, atol=2)


def test_depth_as_png_is_depth_too() -> None:
    pixels = decoded(Eye().see(compressed(png(np.full((HEIGHT, WIDTH), 1000, np.uint16)), "16UC1; png compressed")))
    assert np.allclose(pixels.mean(), 100, atol=2)


def test_a_jpeg_that_fits_passes_through_untouched() -> None:
    jpeg = simplejpeg.encode_jpeg(scene(), quality=33)
    message = sent(compressed(jpeg, "jpeg"))
    eye = Eye()
    eye.set.take("eye", message, 1.0)
    assert eye.set.images
    image = eye.set.images[0]
    assert bytes(image.data) == jpeg and (image.height_px, image.width_px) == (HEIGHT, WIDTH)
    assert isinstance(image.data, memoryview) and image.data.obj is message.data  # shared
    assert convert.image_to(image).data is message.data


def test_an_image_is_encoded_when_sent_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = cameras.encoded
    monkeypatch.setattr(cameras, "encoded", lambda *arguments: calls.append(1) or real(*arguments))
    eye = Eye()
    for _ in range(5):
        image = eye.see(raw(scene(), "rgb8"))
    assert not calls
    first, second = convert.image_to(image), convert.image_to(image)
    assert len(calls) == 1 and first.data is second.data and first.format == "jpeg" and first.header.frame_id == "eye"


def with_fields(message: Any, **fields: Any) -> Any:
    for name, value in fields.items():
        setattr(message, name, value)
    return message


@pytest.mark.parametrize(
    ("message", "counter"),
    [
        (with_fields(raw(scene(), "rgb8"), height=HEIGHT + 1), "bad_image"),
        (with_fields(raw(scene(), "rgb8"), step=3 * WIDTH - 1), "bad_image"),
        (with_fields(raw(scene(), "rgb8"), step=3 * WIDTH + 5), "bad_image"),
        (with_fields(raw(scene(), "rgb8"), width=0), "bad_image"),
        (with_fields(raw(scene(), "rgb8"), width=2**31, height=2**31), "image_too_large"),
        (Image(encoding="rgb8"), "bad_image"),
        (raw(scene(), "bayer_rggb8"), "bad_encoding"),
        (with_fields(raw(scene()[:, :, 0], "mono8"), encoding="16UC1"), "bad_image"),
        (compressed(b"", "jpeg"), "bad_image"),
        (compressed(b"\xff\xd8\xff" + bytes(100), "jpeg"), "bad_image"),
        (compressed(b"not a png at all", "png"), "bad_image"),
        (compressed(bytes(200), "16UC1; compressedDepth png"), "bad_encoding"),
        (compressed(simplejpeg.encode_jpeg(scene()), "webp"), "bad_encoding"),
        (compressed(bytes(MAX_ENCODED_BYTES + 1), "jpeg"), "image_too_large"),
    ],
)
def test_images_that_lie_are_counted_and_dropped(message: Any, counter: str) -> None:
    Eye(depth=(0.0, 1.0)).refuse(message, counter)


def test_depth_needs_a_declared_range() -> None:
    Eye(depth=None).refuse(raw(np.zeros((4, 4), np.uint16), "16UC1"), "no_depth_range")


@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_an_image_that_breaks_off_is_counted_when_it_is_sent(kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (200, 200, 3), np.uint8)
    whole = png(noise) if kind == "png" else simplejpeg.encode_jpeg(noise)
    eye = Eye(max_size_px=64)
    image = eye.see(compressed(whole[: len(whole) // 2], kind))
    assert len(image.data) == 0 and eye.refused == {"bad_image": 1} and eye.set.images is None


def test_all_cameras_or_none() -> None:
    refused: Counter[str] = Counter()
    pair = CameraSet([CameraConfig(name=name, topic=name) for name in "ab"], refused, jpeg_quality=90, max_size_px=640)
    jpeg = compressed(simplejpeg.encode_jpeg(scene()), "jpeg")
    pair.take("b", jpeg, 1.0)
    assert pair.images is None
    pair.take("a", jpeg, 2.0)
    assert pair.images and [image.camera for image in pair.images] == ["a", "b"]
    assert sorted(pair.received_s) == [1.0, 2.0]
    pair.forget()
    assert pair.images is None
