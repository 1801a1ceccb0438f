"""Images sent ahead: a buffer is used again only when its copy is there, whatever sizes, threads and errors come."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ros2_rfm_serving.engines.uploads import NUM_SLOTS, BufferRing, HostDevice, UploadedImage, Uploads
from ros2_rfm_serving.types import Image


class Event:
    """Comes when somebody waits for it."""

    def __init__(self, device: Late) -> None:
        self._device, self._copies = device, len(device.asked)

    def synchronize(self) -> None:
        self._device.catch_up(self._copies)


class Late:
    """A device that copies nothing until it is waited for: whoever writes to a buffer too early sends what he wrote."""

    def __init__(self) -> None:
        self.asked: list[tuple[Tensor, Tensor]] = []
        self.done, self.buffers, self.received_from = 0, list[int](), list[Event]()
        self.refuses: Exception | None = None
        self._lock = threading.RLock()

    def buffer(self, num_bytes: int) -> Tensor:
        self.buffers.append(num_bytes)
        return torch.empty(num_bytes, dtype=torch.uint8)

    @contextmanager
    def copying(self) -> Iterator[None]:
        with self._lock:
            yield

    def copied(self, host: Tensor) -> Tensor:
        if self.refuses:
            raise self.refuses
        there = torch.zeros_like(host)
        self.asked.append((host, there))
        return there

    def event(self) -> Event:
        return Event(self)

    def received(self, pixels: Tensor, there: Event) -> Tensor:
        self.received_from.append(there)
        there.synchronize()
        return pixels

    def catch_up(self, copies: int) -> None:
        with self._lock:
            for host, there in self.asked[self.done : copies]:
                there.copy_(host)
            self.done = max(self.done, copies)


def picture(value: int, height: int = 4, width: int = 6) -> Image:
    return np.full((height, width, 3), value, np.uint8)


def test_a_buffer_is_written_again_only_when_its_copy_is_there() -> None:
    device = Late()
    uploads = Uploads(device, num_slots=2)
    sent = [uploads.send(picture(value)) for value in range(5)]
    assert device.done == 3, "the first three had to be there before their buffers were used again; the last two are on their way"
    there = uploads.batch(sent)
    assert there.shape == (5, 4, 6, 3) and [int(image.unique()) for image in there] == list(range(5))
    assert len(device.buffers) == 2


def test_an_image_here_is_what_it_was_and_what_is_made_of_it_was_never_sent() -> None:
    sent = Uploads(Late()).send(picture(7))
    assert isinstance(sent, UploadedImage) and np.array_equal(sent, picture(7)) and sent.twin is not None
    assert sent[:2].twin is None and (sent + 1).twin is None and np.asarray(sent[..., ::-1]).dtype == np.uint8  # type: ignore[attr-defined]


def test_buffers_grow_with_what_comes_and_a_small_image_after_a_large_one_is_whole() -> None:
    device = Late()
    uploads = Uploads(device, num_slots=1)
    large, small = uploads.send(picture(1, 40, 60)), uploads.send(picture(2))
    assert device.buffers == [3 * 40 * 60]
    for image, value in ((small, 2), (large, 1)):
        assert uploads.batch([image]).unique().tolist() == [value]


@pytest.mark.parametrize("strange", ["read-only", "turned", "every other"])
def test_any_array_can_be_sent(strange: str) -> None:
    pixels = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    images = {
        "read-only": np.frombuffer(pixels.tobytes(), np.uint8).reshape(4, 6, 3),
        "turned": pixels[::-1],
        "every other": pixels[:, ::2],
    }
    uploads = Uploads(Late())
    image = images[strange]
    assert np.array_equal(uploads.batch([uploads.send(image)])[0], image)
    assert np.array_equal(uploads.batch([np.ascontiguousarray(image)])[0], image), "and one that was not sent ahead"


def test_what_a_network_takes_is_made_there_and_of_an_image_that_was_not_sent_here() -> None:
    made: list[str] = []

    def halved(pixels: Tensor) -> Tensor:
        made.append(threading.current_thread().name)
        return pixels.float()[::2] / 2

    class Prompt(Late):
        def copied(self, host: Tensor) -> Tensor:
            super().copied(host)
            return host.clone()

    uploads = Uploads(Prompt(), halved)
    decoder = threading.Thread(target=lambda: images.append(uploads.send(picture(8))), name="decoder")
    images: list[Image] = [picture(6)]
    decoder.start()
    decoder.join()
    there = uploads.batch(images)
    assert there.dtype == torch.float32 and there.shape == (2, 2, 6, 3) and there.amax((1, 2, 3)).tolist() == [3, 4]
    assert made == ["decoder", threading.current_thread().name]


def test_on_the_host_who_sends_an_image_makes_of_it_what_the_network_takes() -> None:
    made: list[int] = []

    def first_row(pixels: Tensor) -> Tensor:
        made.append(int(pixels.max()))
        return pixels[0].float()

    here = HostDevice(first_row)
    images = [here.send(picture(3)), picture(4)]
    assert made == [3] and isinstance(images[0], UploadedImage) and np.array_equal(images[0], picture(3))
    assert here.batch(images).amax((1, 2)).tolist() == [3, 4] and made == [3, 4]


def test_what_cannot_be_fitted_here_its_batch_finds_out() -> None:
    def refuse(pixels: Tensor) -> Tensor:
        raise RuntimeError("not enough memory")

    here = HostDevice(refuse)
    image = here.send(picture(3))
    assert not isinstance(image, UploadedImage) and np.array_equal(image, picture(3))
    with pytest.raises(RuntimeError, match="not enough memory"):
        here.batch([image])


@pytest.mark.parametrize("kind", [lambda fit: Uploads(Late(), fit), HostDevice])
def test_an_image_of_another_network_is_sent_anew(kind: Any) -> None:
    one, other = kind(lambda pixels: pixels), kind(lambda pixels: pixels[:2])
    assert other.batch([one.send(picture(1))]).shape == (1, 2, 6, 3)


def test_what_the_device_refuses_its_batch_finds_out_and_no_buffer_is_lost() -> None:
    device = Late()
    uploads = Uploads(device, num_slots=1)
    device.refuses = torch.OutOfMemoryError("CUDA out of memory")
    for _ in range(3):
        image = uploads.send(picture(3))
        assert not isinstance(image, UploadedImage) and np.array_equal(image, picture(3))
        with pytest.raises(torch.OutOfMemoryError):
            uploads.batch([image])
    device.refuses = None
    assert uploads.batch([uploads.send(picture(3)), image]).unique().tolist() == [3]


def test_a_size_that_cannot_be_made_there_is_made_here_and_its_copy_is_waited_for() -> None:
    device = Late()

    def fit(pixels: Tensor) -> Tensor:
        if any(pixels is there for _, there in device.asked):
            raise RuntimeError("too much shared memory required")
        return pixels[:2]

    uploads = Uploads(device, fit, num_slots=1)
    image = uploads.send(picture(5))
    assert not isinstance(image, UploadedImage) and device.done == 0
    assert uploads.batch([image]).unique().tolist() == [5]
    assert device.done == 2, "the failed one's copy read its buffer before that was written again"


def test_where_all_buffers_are_being_filled_the_next_one_waits_for_the_first_that_is_free() -> None:
    ring = BufferRing(lambda num_bytes: torch.empty(num_bytes, dtype=torch.uint8), num_slots=2)
    entered, may_go = threading.Barrier(3), threading.Event()
    got: list[str] = []

    def fill() -> None:
        with ring.slot(8):
            entered.wait(20)
            may_go.wait(20)

    def late() -> None:
        with ring.slot(8):
            got.append("a slot")

    threads = [threading.Thread(target=fill) for _ in range(2)]
    for thread in threads:
        thread.start()
    entered.wait(20)
    third = threading.Thread(target=late)
    third.start()
    third.join(0.05)
    assert third.is_alive() and not got
    may_go.set()
    for thread in (*threads, third):
        thread.join(20)
    assert got == ["a slot"]


def test_many_threads_send_what_they_have() -> None:
    uploads = Uploads(Late(), num_slots=2)
    found: dict[int, Image] = {}

    def send(first: int) -> None:
        for value in range(first, first + 25):
            found[value] = uploads.send(picture(value, 2 + value % 5))

    threads = [threading.Thread(target=send, args=(25 * i,)) for i in range(NUM_SLOTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for value, image in found.items():
        there = uploads.batch([image])[0]
        assert there.shape == (2 + value % 5, 6, 3) and there.unique().tolist() == [value]
