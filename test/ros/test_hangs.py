"""Nodes whose middleware does not come back: in real processes, with a stand-in for the mutex that hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ros2_rfm_serving.audit.bag import Bag
from ros2_rfm_serving.audit.verify import verify
from ros2_rfm_serving.ros.node import hang_watch, last_resort
from ros2_rfm_serving.ros.node.process import EXIT_CONFIGURATION, EXIT_END_HUNG

PATIENT_S = 180.0
"""For a process to start beside many others, and for it to end."""


class Hanging:
    """A process of `hanging.py`."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder, self.process = folder, process

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def wait(self, condition: Callable[[], bool]) -> None:
        ends_s = time.monotonic() + PATIENT_S
        while not condition():
            assert time.monotonic() < ends_s and self.process.poll() is None, self.log
            time.sleep(0.1)

    def ended(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=PATIENT_S)


@contextmanager
def hanging(where: str, how: str, folder: Path, repository: Path) -> Iterator[Hanging]:
    command = [sys.executable, "-m", "test.ros.hanging", where, how, str(folder)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=repository, stdout=log, stderr=log, env=os.environ)
    found = Hanging(folder, process)
    try:
        found.wait((folder / "works").exists)
        yield found
    finally:
        process.kill()
        process.wait()


def test_the_end_of_a_node_that_hangs_takes_less_than_ten_seconds() -> None:
    assert hang_watch.END_STEP_S + hang_watch.LOOK_PERIOD_S + hang_watch.CLOSE_S + hang_watch.LAST_RESORT_S < 10.0
    assert last_resort.SILENT_S + last_resort.STAGE + hang_watch.LOOK_PERIOD_S < 10.0


def test_a_node_that_hangs_while_it_ends_closes_its_files_and_leaves(tmp_path: Path, repository: Path, ros_domain: int) -> None:
    with hanging("end", "lets others run", tmp_path, repository) as node:
        assert node.ended() == EXIT_END_HUNG
        assert "its end hangs: it has been inside publish of /push_1/rfm/status for" in node.log
        assert "(destroying the node)" in node.log
        assert "in destroy_node" in node.log and (tmp_path / "closed").exists()


def test_a_node_that_hangs_with_the_global_lock_while_it_ends_is_ended_by_an_alarm(
    tmp_path: Path, repository: Path, ros_domain: int
) -> None:
    with hanging("end", "holds the lock", tmp_path, repository) as node:
        assert node.ended() == -signal.SIGALRM
        assert "in publish" in node.log and "in destroy_node" in node.log


def test_a_long_step_of_an_end_that_hangs_with_the_global_lock_is_no_longer_than_others(
    tmp_path: Path, repository: Path, ros_domain: int
) -> None:
    """As of a recorder that waits for its disk, or of a server that closes its engines: they may, but not with Python's lock."""
    with hanging("stop", "holds the lock", tmp_path, repository) as node:
        assert node.ended() == -signal.SIGALRM, "after 100 s, which this step may take, and the test is not that patient"
        assert "in publish" in node.log and "in stop" in node.log


def test_an_end_that_is_stopped_and_continued_goes_on(tmp_path: Path, repository: Path, ros_domain: int) -> None:
    """Time in which the process did not run is no time of its end: SIGALRM, which is due meanwhile, does not end it."""
    with hanging("slow", "lets others run", tmp_path, repository) as node:
        node.process.send_signal(signal.SIGTERM)
        node.wait((tmp_path / "stops").exists)
        time.sleep(1.0)
        for _ in range(2):
            node.process.send_signal(signal.SIGSTOP)
            time.sleep(7.0)  # longer than a process without Python has
            node.process.send_signal(signal.SIGCONT)
            time.sleep(2.0)
            assert node.process.poll() is None, node.log
        (tmp_path / "asked again").touch()
        assert node.process.wait(timeout=PATIENT_S) == 0 and "hang" not in node.log


def test_a_recorder_that_hangs_while_it_ends_has_closed_its_bag(tmp_path: Path, repository: Path, ros_domain: int) -> None:
    with hanging("recorder", "lets others run", tmp_path, repository) as node:
        assert node.ended() == EXIT_END_HUNG
        assert "its end hangs: it has been inside publish" in node.log and "(draining)" in node.log
    bag = Bag(tmp_path / "bag")
    (chain,) = verify(bag.pages).chains
    assert chain.closed and not bag.damages and (tmp_path / "bag" / "metadata.yaml").exists()


def test_a_publisher_that_hangs_at_work_is_named_and_ends_when_it_is_asked_to(
    tmp_path: Path, repository: Path, ros_domain: int
) -> None:
    with hanging("work", "lets others run", tmp_path, repository) as node:
        node.wait(lambda: "hangs: its executor has been inside publish of /push_1/rfm/status for" in node.log)
        assert "[hanging]" in node.log and "in _publish" in node.log
        assert node.ended() == EXIT_END_HUNG
        assert "its end hangs" in node.log and "(at work, when it was asked to end)" in node.log
        assert (tmp_path / "closed").exists()


def test_a_publisher_that_hangs_at_work_with_the_global_lock_leaves_its_stack_in_the_log_and_ends_when_it_is_asked_to(
    tmp_path: Path, repository: Path, ros_domain: int
) -> None:
    with hanging("work", "holds the lock", tmp_path, repository) as node:
        node.wait(lambda: "in publish" in node.log and "in _publish" in node.log)
        assert node.ended() == -signal.SIGALRM  # no handler of Python runs, and nobody else ends it


@pytest.mark.parametrize(("how", "code"), [("lets others run", 0), ("holds the lock", -signal.SIGALRM)])
def test_a_node_that_hangs_while_it_starts_is_named_and_ends_when_it_is_asked_to(
    tmp_path: Path, repository: Path, ros_domain: int, how: str, code: int
) -> None:
    """As one whose first message is the one that waits. Nothing has begun that would have to be brought to an end."""
    with hanging("start", how, tmp_path, repository) as node:
        node.wait(lambda: "publish" in node.log and "in __init__" in node.log)
        assert node.ended() == code, node.log


def test_a_node_that_was_stopped_and_continued_does_not_hang(tmp_path: Path, repository: Path, ros_domain: int) -> None:
    """Time in which the whole process did not run is no time of a call."""
    with hanging("nowhere", "lets others run", tmp_path, repository) as node:
        node.process.send_signal(signal.SIGSTOP)
        time.sleep(4.0)
        (tmp_path / "works").unlink()
        node.process.send_signal(signal.SIGCONT)
        node.wait((tmp_path / "works").exists)
        time.sleep(1.5)
        assert "hangs" not in node.log and node.ended() == 0
        assert "the process did not run for" in node.log, "stacks that were written for that are explained"


def test_a_node_that_publishes_often_in_one_long_callback_does_not_hang(tmp_path: Path, repository: Path, ros_domain: int) -> None:
    with hanging("busy", "lets others run", tmp_path, repository) as node:
        node.wait((tmp_path / "published").exists)
        assert "hang" not in node.log


def test_a_second_ctrl_c_does_not_cut_short_an_end_that_may_take_long(tmp_path: Path, repository: Path, ros_domain: int) -> None:
    """As of a recorder that closes a large bag, or of a server that closes its engine."""
    with hanging("slow", "lets others run", tmp_path, repository) as node:
        node.process.send_signal(signal.SIGINT)
        node.wait((tmp_path / "stops").exists)
        for number in (signal.SIGINT, signal.SIGTERM):
            node.process.send_signal(number)
            time.sleep(0.3)
        (tmp_path / "asked again").touch()
        assert node.process.wait(timeout=PATIENT_S) == 0
        assert float((tmp_path / "left").read_text()) == 0.0, "no alarm is set"


def test_a_node_that_waits_for_somebody_who_listens_does_not_hang(tmp_path: Path, repository: Path, ros_domain: int) -> None:
    """It ends with the code of what it has to say: one that lost its name is not to be started again."""
    with hanging("lost", "lets others run", tmp_path, repository) as node:
        (tmp_path / "lose").touch()
        assert node.process.wait(timeout=PATIENT_S) == EXIT_CONFIGURATION, node.log
        assert (tmp_path / "said").exists() and "its end hangs" not in node.log


@pytest.mark.parametrize("where", ["nowhere", "many files"])
def test_a_node_that_does_not_hang_ends_in_order_and_says_nothing(
    tmp_path: Path, repository: Path, ros_domain: int, where: str
) -> None:
    with hanging(where, "holds the lock", tmp_path, repository) as node:
        time.sleep(1.0)
        assert node.ended() == 0
        assert "hang" not in node.log and "Traceback" not in node.log and not (tmp_path / "closed").exists()
