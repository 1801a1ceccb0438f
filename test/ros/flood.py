"""An intruder in a process of its own: says recorded or made up messages over and over, on any topic.

python -m test.ros.flood RATE_HZ KIND TOPIC FILE...; each file is a message, as bytes. Until its standard input ends.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rfm_serving import msg

from ros2_rfm_serving.ros.wire import qos

PROFILES = {"Schedule": qos.SCHEDULE, "ServerStatus": qos.SERVER_STATUS}


def main(rate_hz: float, kind: str, topic: str, files: list[str]) -> None:
    messages = itertools.cycle([Path(file).read_bytes() for file in files])
    with speaking(rate_hz, getattr(msg, kind), topic, PROFILES[kind]) as say:
        say(lambda: next(messages))


@contextmanager
def speaking(rate_hz: float, kind: type, topic: str, profile: QoSProfile) -> Iterator[Callable[..., None]]:
    """A node of an intruder. The function says what it is given, as often, from when so many listen until standard input ends."""
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    rclpy.init()
    node = Node("intruder", enable_rosout=False, start_parameter_services=False)
    publisher = node.create_publisher(kind, topic, profile)

    def say(message: Callable[[], Any], listeners: int = 0) -> None:
        while not over.is_set() and publisher.get_subscription_count() < listeners:
            time.sleep(0.02)
        begin_s, said = time.monotonic(), 0
        while not over.is_set():
            publisher.publish(message())
            said += 1
            if said == 1:
                print("begun", flush=True)
            time.sleep(max(0.0, begin_s + said / rate_hz - time.monotonic()))
        print(f"{said / (time.monotonic() - begin_s):.0f}/s", flush=True)

    yield say
    node.destroy_node()
    rclpy.try_shutdown()


@contextmanager
def flood(folder: Path, kind: type, topic: str, messages: list[bytes], rate_hz: float = 1000.0) -> Iterator[Callable[[], str]]:
    """While the block runs. The function: how often it has spoken, once it is over."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{i}.bin" for i in range(len(messages))]
    for file, message in zip(files, messages, strict=True):
        file.write_bytes(message)
    with beside("test.ros.flood", str(rate_hz), kind.__name__, topic, *map(str, files)) as told:
        yield told


@contextmanager
def beside(module: str, *arguments: str) -> Iterator[Callable[[], str]]:
    """The module in a process of its own, from when it has begun. The function: its last words, once the block is over."""
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    told = []
    try:
        yield lambda: told[0]
    finally:
        told.append(process.communicate(timeout=60)[0].strip())


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
