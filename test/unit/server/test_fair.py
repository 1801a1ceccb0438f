"""Who is next where many share, what did not arrive, and what a picture costs."""

from __future__ import annotations

import io
import random
from collections import Counter

import numpy as np
import pytest
import simplejpeg
from PIL import Image as Pillow

from ros2_rfm_serving.errors import BadMessageError
from ros2_rfm_serving.server import images
from ros2_rfm_serving.server.arrivals import MAX_GAP, Arrivals
from ros2_rfm_serving.server.fair_queue import SPARE, FairQueue
from ros2_rfm_serving.server.quota import MAX_KEYS, Quotas
from ros2_rfm_serving.types import EncodedImage, RequestId


def test_whoever_has_had_least_is_next_and_the_newest_item_counts() -> None:
    queue: FairQueue[str, int] = FairQueue()
    for key in "abc":
        queue.put(key, 1)
    queue.put("a", 2)
    assert queue.pop_next() == ("a", 2)
    queue.charge("a", 5.0)
    queue.put("a", 3)
    assert [queue.pop_next()[0] for _ in range(3)] == ["b", "c", "a"]


def test_a_costly_one_gets_no_more_of_the_time_than_the_others() -> None:
    queue: FairQueue[str, None] = FairQueue()
    cost, had = {"costly": 100.0, "r1": 1.0, "r2": 1.0}, Counter[str]()
    for key in cost:
        queue.put(key, None)
    for _ in range(1000):
        key, _item = queue.pop_next()
        had[key] += 1
        queue.charge(key, cost[key])
        queue.put(key, None)
    assert had["costly"] <= 6 and abs(had["r1"] - had["r2"]) <= 100


def test_nobody_saves_up_while_away_and_nothing_is_remembered_for_ever() -> None:
    queue: FairQueue[str, None] = FairQueue()
    for _ in range(100):
        queue.put("r1", None)
        queue.charge(queue.pop_next()[0], 1.0)
    queue.put("r1", None)
    queue.put("new", None)
    queue.charge(queue.pop_next()[0], 1.0)
    queue.put("new", None)
    assert queue.pop_next()[0] == "r1"  # and not new a hundred times
    for i in range(10 * SPARE):
        queue.put(f"x{i}", None)
        queue.charge(queue.pop_next()[0], 0.0)
    assert len(queue._had) <= 2 * SPARE


def test_each_has_a_quota_and_another_rate_counts_at_once() -> None:
    quotas = Quotas(2)
    assert [quotas.try_acquire("a", 1.0, 0.0) for _ in range(3)] == [True, True, False]
    assert quotas.try_acquire("b", 1.0, 0.0) and quotas.try_acquire("a", 1.0, 1.0) and not quotas.try_acquire("a", 1.0, 1.5)
    assert quotas.try_acquire("a", 5.0, 1.5)
    assert not quotas.insists("a", 1, 1.5) and not quotas.insists("nobody", 0, 1.5)
    assert [quotas.try_acquire("a", 5.0, 1.5) for _ in range(4)] == [True, False, False, False]
    assert quotas.insists("a", 3, 1.5) and not quotas.insists("a", 4, 1.5) and not quotas.insists("a", 3, 2.0)
    for i in range(2 * MAX_KEYS):
        quotas.try_acquire(i, 5.0, 2.0)
    assert len(quotas._of) <= MAX_KEYS


def request(sequence: int, *, robot: str = "r1", epoch: int = 1) -> RequestId:
    return RequestId(robot=robot, component="system1", session_epoch=epoch, episode=1, sequence=sequence)


def test_sent_is_seen_and_lost() -> None:
    arrivals, rng, lost, seen = Arrivals(), random.Random(3), Counter[str](), Counter[str]()
    for robot in ("r1", "r2"):
        lost[robot] += arrivals.lost_before(request(1, robot=robot))
        seen[robot] += 1
    for sequence in range(2, 2001):
        for robot in ("r1", "r2"):
            if rng.random() < 0.3 or sequence == 2000:
                lost[robot] += arrivals.lost_before(request(sequence, robot=robot))
                seen[robot] += 1
    assert all(lost[robot] + seen[robot] == 2000 and lost[robot] for robot in ("r1", "r2"))


def test_another_session_late_ones_and_invented_numbers_are_no_loss() -> None:
    arrivals = Arrivals()
    assert arrivals.lost_before(request(5)) == 0
    assert arrivals.lost_before(request(4)) == 0 and arrivals.lost_before(request(5)) == 0
    assert arrivals.lost_before(request(9, epoch=2)) == 0
    assert arrivals.lost_before(request(10 + MAX_GAP + 1, epoch=2)) == 0


def jpeg(height: int, width: int, *, progressive: bool = False) -> EncodedImage:
    file = io.BytesIO()
    Pillow.fromarray(np.zeros((height, width, 3), np.uint8)).save(file, "JPEG", progressive=progressive)
    return EncodedImage(camera="front", format="jpeg", data=file.getvalue())


def test_what_takes_long_to_decode_is_known_by_its_header() -> None:
    two_cameras = (jpeg(480, 640), jpeg(480, 640))
    assert images.is_light(two_cameras) and images.is_light(())
    assert not images.is_light((*two_cameras, jpeg(480, 640), jpeg(480, 640)))
    assert not images.is_light([jpeg(1080, 1920)])
    assert not images.is_light([jpeg(48, 64, progressive=True)])
    assert images.is_light([EncodedImage(camera="front", format="jpeg", data=b"none")])  # refused at once
    raw = EncodedImage(camera="front", format="rgb8", data=bytes(3), height_px=1, width_px=1)
    assert images.is_light([raw])


def test_an_image_of_many_large_scans_is_refused_before_it_is_decoded() -> None:
    assert images.decode(jpeg(1080, 1920)).shape == (1080, 1920, 3)
    assert images.decode(jpeg(480, 640, progressive=True)).shape == (480, 640, 3)
    with pytest.raises(BadMessageError, match="scans") as refused:
        images.decode(jpeg(2048, 2048, progressive=True))
    assert refused.value.kind == "image_too_costly"
    assert simplejpeg.decode_jpeg(jpeg(2048, 2048, progressive=True).data).shape == (2048, 2048, 3)  # no other reason
