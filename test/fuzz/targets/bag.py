"""`audit/bag.py`: a file of a recording, whole, cut off, or changed; and `rfm record --recover` of it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from ros2_rfm_serving.audit import chain
from ros2_rfm_serving.audit.bag import OBSERVATION, PAGE, Bag
from ros2_rfm_serving.audit.bag_metadata import METADATA
from ros2_rfm_serving.audit.bag_writer import BagWriter
from ros2_rfm_serving.audit.findings import in_words
from ros2_rfm_serving.audit.recording.recover import recover
from ros2_rfm_serving.audit.verify_bag import verify_bag
from ros2_rfm_serving.errors import RfmError
from test.fuzz.targets.files import explained, written
from test.unit.audit import recorded

T, TEXT = 1_790_000_000_000_000_000, "std_msgs/msg/String"
NAME = "bag/bag_0.mcap"


def seeds() -> list[bytes]:
    return [_recorded(messages) for messages in (1, 12)]


def check(data: bytes) -> None:
    folder = written(b"", "none").parent / "bag"
    folder.mkdir(exist_ok=True)
    (folder / METADATA).unlink(missing_ok=True)
    file = written(data, NAME)
    try:
        found = _read(Bag(file))
    except RfmError as error:
        explained(error)
        return
    recover(folder)
    assert _read(Bag(folder)) == found and not any("cut off" in damage for damage in Bag(folder).damages)


def _read(bag: Bag) -> int:
    """Messages. What is no message of its type says so."""
    count = 0
    for message in bag.messages():
        count += 1
        try:
            bag.read(message)
        except RfmError as error:
            explained(error)
    for page in bag.pages():
        checked = chain.Checked(writer=page.writer, run=page.run)
        checked.add(page)
    bag.blob("0" * 64)
    assert all(in_words(one) for one in verify_bag(bag).findings)
    return count


def _recorded(messages: int) -> bytes:
    notes = chain.Chain("robot/r", 1)
    with tempfile.TemporaryDirectory() as parent:
        with BagWriter(Path(parent) / "bag") as bag:
            for number in range(messages):
                time_ns = T + number * 300_000_000
                recorded.write(bag, "/word", TEXT, time_ns, data=f"word {number}")
                notes.note("tick", 0.1 * number, {"number": number})
                page = notes.page()
                assert page is not None
                bag.write("/r/rfm/audit", PAGE, recorded.definition(PAGE), recorded.page(page), time_ns)
                image = recorded.made("sensor_msgs/msg/CompressedImage", data=np.zeros(9, np.uint8), format="jpeg")
                recorded.write(bag, "/rfm/servers/s/observation", OBSERVATION, time_ns, images=[image])
        return (Path(parent) / NAME).read_bytes()
