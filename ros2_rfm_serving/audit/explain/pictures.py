"""Conversion of the images behind a decision to PNG."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path

import simplejpeg
from PIL import Image as PilImage

from ros2_rfm_serving.audit.explain.explanation import Shown
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.server.images import MAX_PIXELS

Blob = Callable[[str], bytes | None]


def save(images: Iterable[Shown], blob: Blob, folder: Path, prefix: str) -> tuple[list[Path], list[str]]:
    """Save the images as PNG. Return the files, and descriptions of images that were not recorded or cannot be shown."""
    folder.mkdir(parents=True, exist_ok=True)
    files, missing = [], []
    for image in images:
        png = as_png(image, blob)
        if png is None:
            missing.append(f"camera {image.camera}: its image was not recorded, or is no JPEG")
            continue
        camera = "".join(c if c.isalnum() or c in "-_" else "_" for c in image.camera)
        files.append(folder / f"{prefix}-{camera}.png")
        files[-1].write_bytes(png)
    return files, missing


def as_png(image: Shown, blob: Blob) -> bytes | None:
    """Return the image as PNG; None if it is missing or cannot be decoded."""
    data = blob(image.sha256)
    if not data:
        return None
    try:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        if height * width > MAX_PIXELS:
            return None
        pixels = simplejpeg.decode_jpeg(data, colorspace="RGB")
    except (ValueError, RfmError):
        return None
    out = BytesIO()
    PilImage.fromarray(pixels).save(out, "png")
    return out.getvalue()
