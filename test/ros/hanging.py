"""A node that hangs where it is told to, in a process of its own: a stand-in for a publisher that waits for a mutex which a killed
process held. As rclpy's it may hold Python's global lock meanwhile."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node

from ros2_rfm_serving.ros.node import hang_watch, last_resort
from ros2_rfm_serving.ros.node.own_name import say_lost
from ros2_rfm_serving.ros.node.process import EXIT_CONFIGURATION
from ros2_rfm_serving.ros.node.runtime import run_node
from ros2_rfm_serving.ros.node.timers import every

WHERE, HOW, FOLDER = sys.argv[1], sys.argv[2], Path(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
hang_watch.HANGS_AFTER_S, hang_watch.FROZEN_AFTER_S, hang_watch.END_STEP_S = 1.0, 2.0, 1.5
hang_watch.CLOSE_S = 5.0 if WHERE == "recorder" else 0.5
hang_watch.LAST_RESORT_S = 0.5
last_resort.SILENT_S = 1.0


class HangingPublisher:
    """`publish` waits for a mutex that nobody gives back."""

    topic_name = "/push_1/rfm/status"

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._mutex.acquire()

    def publish(self, message: object) -> None:
        if WHERE == "busy":
            time.sleep(0.4)
        elif HOW == "holds the lock":
            libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)  # zeros are an open one
            libc.pthread_mutex_lock(mutex)
            libc.pthread_mutex_lock(mutex)  # which no signal interrupts, as it would a sleep
        else:
            self._mutex.acquire()


class HangingNode(Node):
    def __init__(self) -> None:
        super().__init__("hanging")
        self._files = [os.dup(0) for _ in range(1100 if WHERE == "many files" else 0)]
        self._publisher = HangingPublisher()
        if WHERE == "start":
            self._publish()
        elif WHERE == "work":
            every(self, 0.2, self._publish)
        elif WHERE == "busy":
            every(self, 0.2, self._publish_often)
        else:
            every(self, 0.2, (FOLDER / "works").touch)

    def _publish(self) -> None:
        (FOLDER / "works").touch()
        self._publisher.publish("status")

    def _publish_often(self) -> None:
        """Publishing again and again, in one callback of its own that takes longer than a hang."""
        for _ in range(10):
            self._publish()
        (FOLDER / "published").touch()

    def close_files(self) -> None:
        (FOLDER / "closed").touch()

    def destroy_node(self) -> None:
        if WHERE == "end":
            self._publisher.publish("the last status")
        super().destroy_node()


class SlowNode(Node):
    """Its end takes long, as it may: it writes when an alarm will end it, after it was asked to end once more."""

    stop_s = 100.0

    def __init__(self) -> None:
        super().__init__("slow")
        every(self, 0.2, (FOLDER / "works").touch)

    def stop(self) -> None:
        (FOLDER / "stops").touch()
        if WHERE == "stop":
            HangingPublisher().publish("the last status")
        while not (FOLDER / "asked again").exists():
            time.sleep(0.05)
        (FOLDER / "left").write_text(str(signal.getitimer(signal.ITIMER_REAL)[0]))


class Lost:
    """A name that another process has."""

    lost = True

    def diagnosis(self) -> DiagnosticStatus:
        return DiagnosticStatus(name="slow: name")


class LosingNode(Node):
    """It loses its name at work, and nobody subscribes to what it says of that."""

    def __init__(self) -> None:
        super().__init__("losing")
        every(self, 0.2, self._lose)

    def _lose(self) -> None:
        (FOLDER / "works").touch()
        if (FOLDER / "lose").exists():
            raise SystemExit(EXIT_CONFIGURATION)

    def stop(self) -> None:
        say_lost(self, [Lost()])  # type: ignore[list-item]
        (FOLDER / "said").touch()


def hanging_recorder() -> Node:
    """A recorder that hangs when it is asked to end, before it has closed its bag."""
    from ros2_rfm_serving.ros.monitor.recorder import RecorderNode  # slow to import

    class HangingRecorder(RecorderNode):
        def drain(self) -> None:
            HangingPublisher().publish("the last status")

    node = HangingRecorder()
    every(node, 0.2, (FOLDER / "works").touch)
    return node


sys.argv[1:] = ["--ros-args", "-p", f"folder:={FOLDER / 'bag'}"]
run_node({"recorder": hanging_recorder, "slow": SlowNode, "stop": SlowNode, "lost": LosingNode}.get(WHERE, HangingNode))
