"""Ports of shared memory whose owners were killed are left alone by who starts, while somebody still writes to them."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ros2_rfm_serving.ros.node.shared_memory import dead_ports_left_alone

DOMAIN, BASE = 71, 7400 + 250 * 71
DEAD, ALIVE, FORGOTTEN, EVERYBODYS, ANOTHERS = BASE + 11, BASE + 13, BASE + 15, BASE + 1, BASE + 261


@pytest.fixture
def shm(tmp_path: Path) -> Path:
    (tmp_path / "shm").mkdir()
    (tmp_path / "proc" / "77").mkdir(parents=True)
    written = (DEAD, ALIVE, EVERYBODYS, ANOTHERS)
    lines = [f"7f00-7f01 rw-s 00000000 00:18 5    /dev/shm/fastdds_port{port}\n" for port in written]
    (tmp_path / "proc" / "77" / "maps").write_text("".join(lines))
    for port in (*written, FORGOTTEN):
        (tmp_path / "shm" / f"fastdds_port{port}").write_bytes(b"x")
        (tmp_path / "shm" / f"fastdds_port{port}_el").touch()
    return tmp_path / "shm"


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """As its owner has it. Raises: `OSError`."""
    with file.open("rb") as own:
        fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def may_be_taken(shm: Path) -> set[int]:
    free = set()
    for port in (DEAD, FORGOTTEN, EVERYBODYS, ANOTHERS):
        try:
            with locked(shm / f"fastdds_port{port}_el"):
                free.add(port)
        except OSError:
            continue
    return free


def test_a_killed_owners_port_is_taken_while_one_starts(shm: Path) -> None:
    processes = shm.parent / "proc"
    with locked(shm / f"fastdds_port{ALIVE}_el"):
        with dead_ports_left_alone(DOMAIN, shm, processes), dead_ports_left_alone(DOMAIN, shm, processes):
            assert may_be_taken(shm) == {FORGOTTEN, EVERYBODYS, ANOTHERS}, "two who start at once hold it together"
        assert may_be_taken(shm) == {DEAD, FORGOTTEN, EVERYBODYS, ANOTHERS}


def test_without_shared_memory_nothing_happens(tmp_path: Path) -> None:
    with dead_ports_left_alone(0, tmp_path / "none", tmp_path / "neither"):
        pass


def test_a_pipe_that_somebody_put_there_holds_up_nobody(shm: Path) -> None:
    os.mkfifo(shm / f"fastdds_port{EVERYBODYS + 20}_el")
    begun = threading.Thread(target=_begin, args=(shm,), daemon=True)
    begun.start()
    begun.join(10.0)
    assert not begun.is_alive()


def _begin(shm: Path) -> None:
    with dead_ports_left_alone(DOMAIN, shm, shm.parent / "proc"):
        pass
