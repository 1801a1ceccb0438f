"""Files that somebody made to do harm: little memory, no waiting, no file but the recording's own, and a word of what is wrong."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
import zstandard
from mcap.opcode import Opcode

from ros2_rfm_serving.audit import mcap_scan
from ros2_rfm_serving.audit.bag import Bag
from ros2_rfm_serving.audit.bag_writer import BagWriter, free
from ros2_rfm_serving.audit.explain import pictures
from ros2_rfm_serving.audit.explain.explanation import Shown
from ros2_rfm_serving.audit.mcap_chunk import CHUNK, HEAD_BYTES
from ros2_rfm_serving.audit.mcap_file import MAGIC
from ros2_rfm_serving.audit.recording.recover import recover
from ros2_rfm_serving.errors import RfmError
from test.unit.audit.test_bag import written

LARGE = 10 << 30


def chunk(data: bytes, size: int, stored: int) -> bytes:
    length = CHUNK.size - HEAD_BYTES + len(b"zstd") + 8 + stored
    return CHUNK.pack(Opcode.CHUNK, length, 1, 2, size, 0, len(b"zstd")) + b"zstd" + struct.pack("<Q", stored) + data


def bomb(size: int) -> bytes:
    """A frame that says 100 MB, in a chunk that says `size`."""
    data = zstandard.compress(bytes(100 << 20), 1)
    return chunk(data, size, len(data))


def test_a_chunk_is_unpacked_to_as_much_as_it_says_and_never_to_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "bomb.mcap"
    file.write_bytes(MAGIC + bomb(100))
    assert any("would not unpack" in one for one in Bag(file).damages)
    monkeypatch.setattr(mcap_scan, "LARGEST_CHUNK_BYTES", 1 << 20)
    file.write_bytes(MAGIC + bomb(100 << 20))
    assert any("larger than" in one for one in Bag(file).damages)


@pytest.mark.parametrize("code", [Opcode.CHUNK, Opcode.SCHEMA, Opcode.CHANNEL])
def test_a_file_with_a_large_hole_is_not_taken_into_memory(tmp_path: Path, code: int) -> None:
    file = tmp_path / "hole.mcap"
    head = chunk(b"", 100, LARGE) if code == Opcode.CHUNK else struct.pack("<BQ", code, LARGE)
    file.write_bytes(MAGIC + head)
    os.truncate(file, len(MAGIC + head) + LARGE)
    bag = Bag(file)
    assert not list(bag.messages()) and len(bag.damages) >= 2


def test_a_pipe_is_no_recording(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "bag_0.mcap")
    with pytest.raises(RfmError, match="no file"):
        Bag(tmp_path)


def test_a_file_that_was_removed_while_somebody_reads_is_said(tmp_path: Path) -> None:
    written(tmp_path / "bag", split_s=2.0)
    bag = Bag(tmp_path / "bag")
    (tmp_path / "bag" / "bag_0.mcap").unlink()
    assert list(bag.pages()) and any("bag_0.mcap" in one and "any more" in one for one in bag.damages)


def test_a_last_file_without_a_byte_costs_the_others_nothing(tmp_path: Path) -> None:
    written(tmp_path / "bag")
    (tmp_path / "bag" / "bag_1.mcap").touch()
    bag = Bag(tmp_path / "bag")
    assert len(list(bag.messages())) == 84 and not bag.damages


def test_mending_writes_to_no_file_behind_a_link(tmp_path: Path) -> None:
    written(tmp_path / "bag")
    file, precious = tmp_path / "bag" / "bag_0.mcap", tmp_path / "precious"
    os.truncate(file, file.stat().st_size - 100)
    precious.write_text("mine")
    for name in ("bag_0.mcap.mending", "metadata.yaml.new"):
        (tmp_path / "bag" / name).symlink_to(precious)
    recover(tmp_path / "bag")
    assert precious.read_text() == "mine" and Bag(tmp_path / "bag").files[0].closed


def test_one_writes_to_a_folder_at_a_time_and_nobody_mends_it_meanwhile(tmp_path: Path) -> None:
    folder = tmp_path / "bag"
    one = BagWriter(folder)
    assert free(folder) == tmp_path / "bag_2"
    for other in (BagWriter, recover):
        with pytest.raises(RfmError, match="a recorder writes to it"):
            other(folder)
    one.close()
    shutil.rmtree(folder)
    BagWriter(folder).close()


def test_a_picture_that_says_it_is_huge_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(simplejpeg.encode_jpeg(np.zeros((8, 8, 3), np.uint8)))
    size = data.index(b"\xff\xc0") + 5  # behind the begin of the frame: height and width
    data[size : size + 4] = b"\xff\xdc\xff\xdc"

    def unpack(*_: object, **__: object) -> None:
        raise AssertionError("12 GB")

    monkeypatch.setattr(simplejpeg, "decode_jpeg", unpack)
    assert pictures.as_png(Shown("front", "a"), lambda _: bytes(data)) is None
