"""Decoding of JPEGs on a GPU with torchvision's `decode_jpeg`, which uses nvJPEG."""

from __future__ import annotations

import importlib
import threading
from functools import partial
from typing import Any

import numpy as np
import simplejpeg
from torch import Tensor

from ros2_rfm_serving.engines.uploads import CudaDevice, Device, Fit, Uploads, as_it_is
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import EncodedImage, Image

END = b"\xff\xd9"
"""End marker of a complete JPEG."""
PROBE: bytes = simplejpeg.encode_jpeg(np.zeros((16, 16, 3), np.uint8))


class NvJpeg:
    """Callable for `Engine.decode_image`. Any thread may call it; images are decoded one at a time, as torchvision requires.

    torchvision lets nvJPEG write to memory that work of the calling stream may still read (pytorch/vision#9606). So this stream
    serves nothing else, one thread uses it at a time, and no work is pending on it when its lock is released.
    """

    def __init__(self, uploads: Uploads, stream: Device, device: str, first: Fit = as_it_is, library: Any = None) -> None:
        """Create the decoder and decode a probe. first: transformation of a decoded image before it is returned.
        library: `torchvision.io`. Raises: `ModelError` if torchvision decodes no JPEG on the device."""
        self._uploads, self._stream, self._first, self._lock = uploads, stream, first, threading.Lock()
        try:
            library = library or importlib.import_module("torchvision.io")
            self._decode_jpeg = partial(library.decode_jpeg, mode=library.ImageReadMode.RGB, device=device)
            self._decoded(PROBE)
        except (ImportError, AttributeError, RuntimeError) as error:
            problem = f"options.device_decoding: torchvision decodes no JPEG on {device} ({type(error).__name__}: {error})"
            raise ModelError(f"{problem}; install one with nvJPEG for this PyTorch, or leave it out") from error

    def __call__(self, image: EncodedImage) -> Image | None:
        """Return the decoded image, or None if the host is to decode it and report the problem.
        That is the case for an incomplete image, or one that nvJPEG does not accept."""
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
    """Return a decoder, or None if no images are sent to the device. Raises: `ModelError` if torchvision cannot decode there."""
    return NvJpeg(uploads, CudaDevice(device), device, first) if uploads else None
