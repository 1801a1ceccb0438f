"""Camera images on their way to a network while it computes something else; to a GPU: buffers in turn, a stream for copies, an
event each.

A decoder's thread sends an image as soon as it has its pixels (`Engine.fit_image`). The engine's thread waits for nothing but the
images of its own batch, and it is the GPU that waits. An image that was not sent, or could not be, is sent with its batch.
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
"""[H, W, 3] uint8 -> what a network takes, of one shape for all images, on the same device."""
NUM_SLOTS = 8
"""As many copies are under way at most, each of some 0.1 ms."""


class Event(Protocol):
    def synchronize(self) -> None:
        """Returns when what was asked of the device before it is done."""


class Device(Protocol):
    """Where images go. What is asked of it within `copying` is done in that order, beside all else."""

    def buffer(self, num_bytes: int) -> Tensor:
        """[num_bytes] uint8, on the host, from where it copies by itself."""

    def copying(self) -> AbstractContextManager[None]: ...

    def copied(self, host: Tensor) -> Tensor:
        """Begins to; `host` is to stay as it is until the next `event` has come."""

    def event(self) -> Event: ...

    def received(self, pixels: Tensor, there: Event) -> Tensor:
        """For the caller's own work on the device, which waits for `there`."""


class Gpu:
    """`Device`, by CUDA."""

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

    def event(self) -> Event:
        event: Event = self._stream.record_event()
        return event

    def received(self, pixels: Tensor, there: Event) -> Tensor:
        own = torch.cuda.current_stream(self._device)
        own.wait_event(there)  # type: ignore[arg-type]  # one of `event`
        pixels.record_stream(own)  # its memory is the other stream's: nobody else gets it before `own` has read it
        return pixels


def as_it_is(pixels: Tensor) -> Tensor:
    return pixels


class Slot:
    def __init__(self) -> None:
        self.buffer = torch.empty(0, dtype=torch.uint8)
        self.done: Event | None = None
        """Nothing reads `buffer` any more; None: nothing did."""


class Ring:
    """Buffers that are used in turn, each again only when what was copied out of it is there. Any thread."""

    def __init__(self, allocate: Callable[[int], Tensor], num_slots: int = NUM_SLOTS) -> None:
        self._allocate = allocate
        self._slots = SimpleQueue[Slot]()
        for _ in range(num_slots):
            self._slots.put(Slot())

    @contextmanager
    def slot(self, num_bytes: int) -> Iterator[Slot]:
        """With room for so many bytes: as many as the largest image so far. Waits while other threads fill all of them."""
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
    """What a network takes of an image, on a device."""

    pixels: Tensor
    there: Event
    owner: object
    """Whose `Fit` made it"""


class Sent(np.ndarray[tuple[int, ...], np.dtype[np.uint8]]):
    """An `Image` for whoever computes here. What is cut out of it or made of it has no twin."""

    twin: Twin | None = None


class Uploads:
    """To one device, for one network. Any thread."""

    def __init__(self, device: Device, fit: Fit = as_it_is, num_slots: int = NUM_SLOTS) -> None:
        self._device, self._fit = device, fit
        self._ring = Ring(device.buffer, num_slots)

    def send(self, image: Image) -> Image:
        """The same, its twin on its way; without one where the device refuses, which its batch finds out."""
        try:
            twin = self._copied(image, torch.uint8, self._fit)
        except RuntimeError:  # no memory; a device that is lost; a size that it cannot fit
            return image
        return beside(image, twin)

    def decoded(self, data: memoryview | bytes, decode: Fit, beside_it: Device) -> Image:
        """The pixels of `data` here, their twin there. Nothing that was asked of `beside_it`, the same device, is under way then.

        decode: of [num_bytes] uint8 on the host, which it has read when it returns, [H, W, 3] there. Raises: `RuntimeError`.
        """
        with beside_it.copying(), self._ring.slot(len(data)) as slot:
            host = slot.buffer[: len(data)]
            host.numpy()[...] = np.frombuffer(data, np.uint8)
            pixels = decode(host)
            twin = Twin(self._fit(pixels), beside_it.event(), self)
            return beside(pixels.cpu().numpy(), twin)

    def batch(self, images: Sequence[Image]) -> Tensor:
        """[N, ...] on the device, for what the caller asks of it next. Raises: `RuntimeError`."""
        twins = [self._twin(image) for image in images]
        return torch.stack([self._device.received(twin.pixels, twin.there) for twin in twins])

    def _twin(self, image: Image) -> Twin:
        twin = image.twin if isinstance(image, Sent) else None
        if twin is not None and twin.owner is self:
            return twin
        fitted = self._fit(torch.from_numpy(np.require(image, requirements="W")))
        return self._copied(fitted.numpy(), fitted.dtype, as_it_is)

    def _copied(self, image: np.ndarray[Any, Any], dtype: torch.dtype, fit: Fit) -> Twin:
        with self._device.copying(), self._ring.slot(image.nbytes) as slot:
            host = slot.buffer[: image.nbytes].view(dtype).view(image.shape)
            host.numpy()[...] = image
            there = self._device.copied(host)
            slot.done = self._device.event()  # also where `fit` fails
            return Twin(fit(there), self._device.event(), self)


class Done:
    """`Event`"""

    def synchronize(self) -> None:
        return


class Here:
    """As `Uploads`, for a network on the host: whoever sends an image makes of it what the network takes. Any thread."""

    def __init__(self, fit: Fit) -> None:
        self._fit = fit

    def send(self, image: Image) -> Image:
        """The same, its twin beside it; without one where it cannot be fitted, which its batch finds out."""
        try:
            return beside(image, Twin(self._fitted(image), Done(), self))
        except RuntimeError:  # no memory
            return image

    def batch(self, images: Sequence[Image]) -> Tensor:
        """[N, ...]. Raises: `RuntimeError`."""
        return torch.stack([self._of(image) for image in images])

    def _of(self, image: Image) -> Tensor:
        twin = image.twin if isinstance(image, Sent) else None
        return twin.pixels if twin is not None and twin.owner is self else self._fitted(image)

    def _fitted(self, image: Image) -> Tensor:
        return self._fit(torch.from_numpy(np.require(image, requirements="W")))


def beside(image: Image, twin: Twin) -> Image:
    sent = image.view(Sent)
    sent.twin = twin
    return sent


def uploads_to(device: str, fit: Fit = as_it_is) -> Uploads | None:
    """None: to the host, where images are."""
    return Uploads(Gpu(device), fit) if torch.device(device).type == "cuda" else None
