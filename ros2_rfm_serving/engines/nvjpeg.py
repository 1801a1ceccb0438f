"""JPEGs decoded on a GPU, by torchvision's `decode_jpeg`, which is nvJPEG."""

from __future__ import annotations

import importlib
import threading
from functools import partial
from typing import Any

import numpy as np
import simplejpeg
from torch import Tensor

from ros2_rfm_serving.engines.uploads import Device, Fit, Gpu, Uploads, as_it_is
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import EncodedImage, Image

END = b"\xff\xd9"
"""Of a JPEG that is whole"""
PROBE: bytes = simplejpeg.encode_jpeg(np.zeros((16, 16, 3), np.uint8))


class NvJpeg:
    """`Engine.decode_image`. Any thread; one image at a time, as torchvision has it.

    torchvision lets nvJPEG write to memory that work of the calling stream may still read (pytorch/vision#9606). So that is a
    stream for nothing else, one thread at a time, and nothing is under way on it when its lock is let go.
    """

    def __init__(self, uploads: Uploads, stream: Device, device: str, first: Fit = as_it_is, library: Any = None) -> None:
        """first: what a decoded image becomes before it comes back. library: `torchvision.io`. Raises: `ModelError`, it cannot."""
        self._uploads, self._stream, self._first, self._lock = uploads, stream, first, threading.Lock()
        try:
            library = library or importlib.import_module("torchvision.io")
            self._decode_jpeg = partial(library.decode_jpeg, mode=library.ImageReadMode.RGB, device=device)
            self._decoded(PROBE)
        except (ImportError, AttributeError, RuntimeError) as error:
            problem = f"options.device_decoding: torchvision decodes no JPEG on {device} ({type(error).__name__}: {error})"
            raise ModelError(f"{problem}; install one with nvJPEG for this PyTorch, or leave it out") from error

    def __call__(self, image: EncodedImage) -> Image | None:
        """None: the host is to decode it, and says what is wrong: it is not whole, or nvJPEG does not take it."""
        if bytes(image.data[-2:]) != END:
            return None
        try:
            return self._decoded(image.data)
        except RuntimeError:
            return None

    def _decoded(self, data: memoryview | bytes) -> Image:
        with self._lock:
            return self._uploads.decoded(data, self._pixels, self._stream)

    def _pixels(self, data: Tensor) -> Tensor:
        planes: Tensor = self._decode_jpeg(data)
        return self._first(planes.permute(1, 2, 0))


def decoder_for(uploads: Uploads | None, device: str, first: Fit = as_it_is) -> NvJpeg | None:
    """None: nothing is sent there. Raises: `ModelError`."""
    return NvJpeg(uploads, Gpu(device), device, first) if uploads else None
