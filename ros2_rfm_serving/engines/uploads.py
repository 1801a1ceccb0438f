"""Upload of camera images to a network while it computes something else.

For a GPU there are rotating buffers, a copy stream, and an event for each image. A decoder's thread sends an image as soon as it
has its pixels (`Engine.fit_image`). The engine's thread waits for no images but those of its own batch, and it is the GPU that
waits. An image that was not sent, or could not be, is sent with its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ros2_rfm_serving.types import Image

Fit = Callable[[Tensor], Tensor]
"""Function [H, W, 3] uint8 -> input of a network, of one shape for all images, on the same device."""
NUM_SLOTS = 8
"""Largest number of concurrent copies, each of which takes about 0.1 ms."""


class CopyEvent(Protocol):
    def synchronize(self) -> None:
        """Wait until all work enqueued before the event is done."""


class Device(Protocol):
    """Destination of images. Work that is enqueued within `copying` runs in that order, concurrently with all other work."""

    def buffer(self, num_bytes: int) -> Tensor:
        """Return host memory, [num_bytes] uint8, that the device copies from by itself."""

    def copying(self) -> AbstractContextManager[None]: ...

    def copied(self, host: Tensor) -> Tensor:
        """Begin a copy to the device; `host` must stay unchanged until the next `event` has come."""

    def event(self) -> CopyEvent: ...

    def received(self, pixels: Tensor, there: CopyEvent) -> Tensor:
        """Return the pixels for the caller's own work on the device, which waits for `there`."""


class CudaDevice:
    """`Device` with a CUDA stream of its own."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def buffer(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def copying(self) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = torch.cuda.stream(self._stream)
        return context

    def copied(self, host: Tensor) -> Tensor:
        return host.to(self._device, non_blocking=True)

    def event(self) -> CopyEvent:
        event: CopyEvent = self._stream.record_event()
        return event

    def received(self, pixels: Tensor, there: CopyEvent) -> Tensor:
        own = torch.cuda.current_stream(self._device)
        own.wait_event(there)  # type: ignore[arg-type]  # one of `event`
        pixels.record_stream(own)  # the other stream owns the memory, which is not reused before `own` has read it
        return pixels


def as_it_is(pixels: Tensor) -> Tensor:
    return pixels


class Slot:
    def __init__(self) -> None:
        self.buffer = torch.empty(0, dtype=torch.uint8)
        self.done: CopyEvent | None = None
        """Event after which nothing reads `buffer`; None if nothing did."""


class BufferRing:
    """Buffers in rotation; each is reused only when the copy out of it is complete. Any thread may use it."""

    def __init__(self, allocate: Callable[[int], Tensor], num_slots: int = NUM_SLOTS) -> None:
        self._allocate = allocate
        self._slots = SimpleQueue[Slot]()
        for _ in range(num_slots):
            self._slots.put(Slot())

    @contextmanager
    def slot(self, num_bytes: int) -> Iterator[Slot]:
        """Enter a slot with room for `num_bytes`.
        Buffers grow to the largest image so far. Waits while other threads fill all slots."""
        slot = self._slots.get()
        try:
            if slot.done is not None:
                slot.done.synchronize()
                slot.done = None
            if slot.buffer.numel() < num_bytes:
                slot.buffer = self._allocate(num_bytes)
            yield slot
        finally:
            self._slots.put(slot)


class Twin(NamedTuple):
    """Network input made from an image, on a device."""

    pixels: Tensor
    there: CopyEvent
    owner: object
    """Object whose `Fit` made it."""


class UploadedImage(np.ndarray[tuple[int, ...], np.dtype[np.uint8]]):
    """`Image` for computation on the host, with a twin on the device.
    Arrays that are cut out of it or made from it have no twin."""

    twin: Twin | None = None


class Uploads:
    """Uploads to one device, for one network. Any thread may use it."""

    def __init__(self, device: Device, fit: Fit = as_it_is, num_slots: int = NUM_SLOTS) -> None:
        self._device, self._fit = device, fit
        self._ring = BufferRing(device.buffer, num_slots)

    def send(self, image: Image) -> Image:
        """Return the same image with its upload under way.
        It has no twin if the device refuses; the image is then sent with its batch."""
        try:
            twin = self._copied(image, torch.uint8, self._fit)
        except RuntimeError:  # out of memory, a lost device, or a size that cannot be fitted
            return image
        return beside(image, twin)

    def decoded(self, data: memoryview | bytes, decode: Fit, beside_it: Device) -> Image:
        """Return the pixels of `data` on the host, with their twin on the device. No work is pending on `beside_it` then.

        decode: function from [num_bytes] uint8 on the host, which it has read when it returns, to [H, W, 3] on the device.
        beside_it: the same device. Raises: `RuntimeError` if the image cannot be decoded.
        """
        with beside_it.copying(), self._ring.slot(len(data)) as slot:
            host = slot.buffer[: len(data)]
            host.numpy()[...] = np.frombuffer(data, np.uint8)
            pixels = decode(host)
            twin = Twin(self._fit(pixels), beside_it.event(), self)
            return beside(pixels.cpu().numpy(), twin)

    def batch(self, images: Sequence[Image]) -> Tensor:
        """Return the inputs of a batch, [N, ...], on the device, for the caller's next work.
        Raises: `RuntimeError` if the device fails."""
        twins = [self._twin(image) for image in images]
        return torch.stack([self._device.received(twin.pixels, twin.there) for twin in twins])

    def _twin(self, image: Image) -> Twin:
        twin = image.twin if isinstance(image, UploadedImage) else None
        if twin is not None and twin.owner is self:
            return twin
        fitted = self._fit(torch.from_numpy(np.require(image, requirements="W")))
        return self._copied(fitted.numpy(), fitted.dtype, as_it_is)

    def _copied(self, image: np.ndarray[Any, Any], dtype: torch.dtype, fit: Fit) -> Twin:
        with self._device.copying(), self._ring.slot(image.nbytes) as slot:
            host = slot.buffer[: image.nbytes].view(dtype).view(image.shape)
            host.numpy()[...] = image
            there = self._device.copied(host)
            slot.done = self._device.event()  # also if `fit` fails
            return Twin(fit(there), self._device.event(), self)


class FinishedCopy:
    """`CopyEvent` that has come already."""

    def synchronize(self) -> None:
        return


class HostDevice:
    """Counterpart of `Uploads` for a network on the host: the sending thread makes the network's input. Any thread may use it."""

    def __init__(self, fit: Fit) -> None:
        self._fit = fit

    def send(self, image: Image) -> Image:
        """Return the same image with its twin. It has no twin if it cannot be fitted; its batch then raises the error."""
        try:
            return beside(image, Twin(self._fitted(image), FinishedCopy(), self))
        except RuntimeError:  # out of memory
            return image

    def batch(self, images: Sequence[Image]) -> Tensor:
        """Return the inputs of a batch, [N, ...]. Raises: `RuntimeError` if an image cannot be fitted."""
        return torch.stack([self._of(image) for image in images])

    def _of(self, image: Image) -> Tensor:
        twin = image.twin if isinstance(image, UploadedImage) else None
        return twin.pixels if twin is not None and twin.owner is self else self._fitted(image)

    def _fitted(self, image: Image) -> Tensor:
        return self._fit(torch.from_numpy(np.require(image, requirements="W")))


def beside(image: Image, twin: Twin) -> Image:
    sent = image.view(UploadedImage)
    sent.twin = twin
    return sent


def uploads_to(device: str, fit: Fit = as_it_is) -> Uploads | None:
    """Return the uploads to a device, or None if it is the host, where images are already."""
    return Uploads(CudaDevice(device), fit) if torch.device(device).type == "cuda" else None
