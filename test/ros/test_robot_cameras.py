"""A robot's cameras over real messages: every encoding, and what is refused."""

from __future__ import annotations

import struct
from collections import Counter
from typing import Any

import numpy as np
import pytest
import simplejpeg
from sensor_msgs.msg import Image

from ros2_rfm_serving.ros.robot import cameras, encodings
from ros2_rfm_serving.ros.robot.cameras import CameraConfig, CameraSet
from ros2_rfm_serving.ros.wire import convert
from ros2_rfm_serving.types import MAX_ENCODED_BYTES

from .pictures import BLUE, HEIGHT, PATTERNS, RED, WIDTH, Eye, bayer, compressed, decoded, halves, png, raw, scene, sent, yuv422


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


@pytest.mark.parametrize("depth", [None, (0.0, 2.55)])
@pytest.mark.parametrize("declared", ["mono16; png compressed ", "mono16;png compressed mono16"])
def test_grey_of_16_bits_as_png_is_grey_whatever_the_camera_else_sends(declared: str, depth: Any) -> None:
    """As compressed_image_transport names it; its full scale is that of 8 bits, as in an `Image`."""
    grey = np.full((HEIGHT, WIDTH), 77 * 257, np.uint16)
    grey[:, WIDTH // 2 :] = 65535
    left, right = halves(decoded(Eye(depth=depth).see(compressed(png(grey), declared))))
    assert np.allclose(left, 77, atol=3) and np.allclose(right, 255, atol=3)


@pytest.mark.parametrize(("bits", "pattern"), [(8, "rggb"), (16, "gbrg")])
def test_a_mosaic_as_png_has_its_colours(bits: int, pattern: str) -> None:
    mosaic = bayer(scene(), pattern)
    values = mosaic if bits == 8 else mosaic.astype(np.uint16) * 257
    left, right = halves(decoded(Eye().see(compressed(png(values), f"bayer_{pattern}{bits}; png compressed "))))
    assert np.allclose(left, RED, atol=6) and np.allclose(right, BLUE, atol=6)


def test_compressed_depth_is_depth_in_both_of_its_forms() -> None:
    """A header of 12 bytes, then a PNG of millimetres, or of A / depth + B for depth in metres (its codec.cpp)."""
    millimetres = np.full((HEIGHT, WIDTH), 1000, np.uint16)
    header = struct.pack("<iff", 0, 0.0, 0.0)
    for encoding in ("16UC1", "mono16"):
        pixels = decoded(Eye().see(compressed(header + png(millimetres), f"{encoding}; compressedDepth png")))
        assert np.allclose(pixels.mean(), 100, atol=2)
    quantum, farthest_m = 100.0, 10.0
    scale = quantum * (quantum + 1.0)
    offset = 1.0 - scale / farthest_m
    inverse = np.full((HEIGHT, WIDTH), scale / 1.5 + offset, np.uint16)
    inverse[:, WIDTH // 2 :] = 0
    pixels = decoded(Eye().see(compressed(struct.pack("<iff", 0, scale, offset) + png(inverse), "32FC1; compressedDepth png")))
    left, right = halves(pixels)
    assert np.allclose(left, 150, atol=2) and np.allclose(right, 0, atol=2)
    Eye(depth=None).refuse(compressed(header + png(millimetres), "16UC1; compressedDepth png"), "no_depth_range")
    Eye(depth=None).refuse(compressed(png(millimetres), "16UC1; png compressed "), "no_depth_range")


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


ALPHA = np.full((HEIGHT, WIDTH, 1), 9, np.uint8)
BGR = scene()[:, :, ::-1]
WIDE = scene().astype(np.uint16) * 257


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("padding", [0, 6])
@pytest.mark.parametrize(
    ("encoding", "pixels"),
    [
        ("rgba8", np.concatenate([scene(), ALPHA], axis=2)),
        ("bgra8", np.concatenate([BGR, ALPHA], axis=2)),
        ("rgb16", WIDE),
        ("bgr16", WIDE[:, :, ::-1]),
        ("yuv422", yuv422(scene())),
        ("uyvy", yuv422(scene())),
        ("yuv422_yuy2", yuv422(scene())[:, :, ::-1]),
        ("yuyv", yuv422(scene())[:, :, ::-1]),
        *((f"bayer_{pattern}8", bayer(scene(), pattern)) for pattern in PATTERNS),
        *((f"bayer_{pattern}16", bayer(scene(), pattern).astype(np.uint16) * 257) for pattern in PATTERNS),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_red_stays_red_in_every_encoding(encoding: str, pixels: np.ndarray[Any, Any], padding: int, big_endian: bool) -> None:
    swapped = pixels.byteswap() if big_endian and pixels.itemsize > 1 else pixels
    message = raw(swapped, encoding, padding=padding, big_endian=big_endian, width=WIDTH)
    left, right = halves(decoded(Eye().see(message)))
    assert np.allclose(left, RED, atol=6) and np.allclose(right, BLUE, atol=6)


OPENCV = {
    "rggb": [
        [[139, 122, 131], [58, 102, 150], [141, 137, 168], [224, 82, 181]],
        [[134, 150, 70], [81, 185, 118], [143, 243, 166], [205, 145, 140]],
    ],
    "bggr": [
        [[131, 122, 139], [150, 102, 58], [168, 137, 141], [181, 82, 224]],
        [[70, 150, 134], [118, 185, 81], [166, 243, 143], [140, 145, 205]],
    ],
    "gbrg": [
        [[54, 131, 189], [102, 104, 186], [92, 168, 182], [82, 202, 144]],
        [[148, 102, 150], [174, 81, 197], [165, 155, 243], [157, 205, 134]],
    ],
    "grbg": [
        [[189, 131, 54], [186, 104, 102], [182, 168, 92], [144, 202, 82]],
        [[150, 102, 148], [197, 81, 174], [243, 155, 165], [134, 205, 157]],
    ],
}
"""cv2.cvtColor(mosaic, cv2.COLOR_BayerBG2RGB) and its three sisters, without the border, which it makes up otherwise."""


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_bayer_mosaic_becomes_what_opencv_makes_of_it(pattern: str) -> None:
    mosaic = [[255, 228, 34, 121, 243, 189], [6, 131, 102, 168, 82, 193], [187, 150, 81, 243, 205, 24], [236, 8, 246, 164, 231, 36]]
    pixels = encodings.read_raw(raw(np.array(mosaic, np.uint8), f"bayer_{pattern}8"), None)
    assert pixels.order == "RGB" and pixels.values[1:3, 1:5].tolist() == OPENCV[pattern]
    wide = encodings.read_raw(raw(np.array(mosaic, np.uint16) * 257, f"bayer_{pattern}16"), None)
    assert np.array_equal(wide.values, pixels.values)


def test_the_primary_colours_of_bt_601() -> None:
    """(Y, U, V) of a colour-bar generator at full saturation -> RGB."""
    bars = {(235, 128, 128): (255, 255, 255), (16, 128, 128): (0, 0, 0), (82, 90, 240): (255, 0, 0), (145, 54, 34): (0, 255, 0)}
    bars |= {(41, 240, 110): (0, 0, 255), (210, 16, 146): (255, 255, 0)}
    for (y, u, v), colour in bars.items():
        uyvy = raw(np.array([[[u, y], [v, y]]], np.uint8), "yuv422", width=2)
        yuyv = raw(np.array([[[y, u], [y, v]]], np.uint8), "yuyv", width=2)
        for message in (uyvy, yuyv):
            assert np.allclose(encodings.read_raw(message, None).values, colour, atol=3), (y, u, v)


@pytest.mark.parametrize("big_endian", [False, True])
def test_wide_grey_keeps_its_full_scale(big_endian: bool) -> None:
    grey = np.full((HEIGHT, WIDTH), 77 * 257, ">u2" if big_endian else "<u2")
    grey[:, WIDTH // 2 :] = 65535
    left, right = halves(decoded(Eye(depth=None).see(raw(grey, "mono16", padding=4, big_endian=big_endian))))
    assert np.allclose(left, 77, atol=3) and np.allclose(right, 255, atol=3)


@pytest.mark.parametrize("big_endian", [False, True])
def test_depth_in_metres_becomes_grey_by_its_range(big_endian: bool) -> None:
    metres = [0.0, np.nan, -np.inf, -3.0, 0.5, 1.5, 2.5, 9.0, np.inf, 3e38]
    depth = np.array([metres], ">f4" if big_endian else "<f4")
    message = raw(depth, "32FC1", padding=8, big_endian=big_endian)
    encodings.check_raw(message, (0.5, 2.5))
    with np.errstate(all="raise"):
        pixels = encodings.read_raw(message, (0.5, 2.5))
    assert pixels.order == "GRAY" and pixels.values.tolist() == [[0, 0, 0, 0, 0, 128, 255, 255, 255, 255]]


def test_any_other_encoding_goes_to_cv_bridge_where_ros_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bridge:
        def imgmsg_to_cv2(self, message: Any, desired: str) -> np.ndarray[Any, Any]:
            if message.encoding != "nv12":
                raise RuntimeError("unrecognized image encoding")
            assert desired == "bgr8"
            return BGR

    message = raw(scene()[:, :, 0], "nv12", padding=WIDTH // 2)
    Eye().refuse(message, "bad_encoding")
    monkeypatch.setattr(encodings, "bridge", Bridge)
    left, right = halves(decoded(Eye().see(message)))
    assert np.allclose(left, RED, atol=6) and np.allclose(right, BLUE, atol=6)
    eye = Eye()
    assert len(eye.see(raw(scene()[:, :, 0], "nonsense")).data) == 0 and eye.refused == {"bad_encoding": 1}


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
        (raw(scene(), "8UC3"), "bad_encoding"),
        (raw(scene(), ""), "bad_encoding"),
        (raw(yuv422(scene()), "yuv422", width=WIDTH - 1), "bad_image"),  # a pixel without its colour
        (raw(bayer(scene(), "rggb")[:, :1], "bayer_rggb16"), "bad_image"),
        (with_fields(raw(np.zeros((4, 4), np.float32), "32FC1"), step=15), "bad_image"),
        (with_fields(raw(scene(), "rgb8"), encoding="rgba8"), "bad_image"),
        (with_fields(raw(scene()[:, :, 0], "mono8"), encoding="16UC1"), "bad_image"),
        (compressed(b"", "jpeg"), "bad_image"),
        (compressed(b"\xff\xd8\xff" + bytes(100), "jpeg"), "bad_image"),
        (compressed(b"not a png at all", "png"), "bad_image"),
        (compressed(bytes(200), "16UC1; compressedDepth png"), "bad_image"),
        (compressed(bytes(8), "16UC1; compressedDepth png"), "bad_image"),
        (compressed(bytes(200), "16UC1; compressedDepth rvl"), "bad_encoding"),
        (compressed(bytes(200), "rgb8; compressedDepth png"), "bad_encoding"),
        (compressed(bytes(12) + png(scene()), "16UC1; compressedDepth png"), "bad_image"),
        (compressed(simplejpeg.encode_jpeg(scene()), "webp"), "bad_encoding"),
        (compressed(bytes(MAX_ENCODED_BYTES + 1), "jpeg"), "image_too_large"),
    ],
)
def test_images_that_lie_are_counted_and_dropped(message: Any, counter: str) -> None:
    Eye(depth=(0.0, 1.0)).refuse(message, counter)


def test_depth_needs_a_declared_range() -> None:
    Eye(depth=None).refuse(raw(np.zeros((4, 4), np.uint16), "16UC1"), "no_depth_range")
    Eye(depth=None).refuse(raw(np.zeros((4, 4), np.float32), "32FC1"), "no_depth_range")


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


@pytest.mark.parametrize("sender", ["png", "16UC1; compressedDepth png", "jpeg"])
def test_broken_images_have_one_reason_and_not_another_one_each(sender: str) -> None:
    """Each is refused with the same text, so that the log has it once."""
    reasons = set()
    for _ in range(3):
        eye = Eye()
        eye.refuse(compressed(bytes(40), sender), "bad_image")
        reasons.add(eye.set.problems["eye"])
    assert len(reasons) == 1 and " at 0x" not in reasons.pop()
