"""An intruder in a process of its own: says recorded or made up messages over and over, on any topic.

python -m test.ros.flood RATE_HZ KIND TOPIC FILE...; each file is a message, as bytes. Until its standard input ends.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import rclpy
from rclpy.node import Node
from rfm_serving import msg

from ros2_rfm_serving.ros.wire import qos

PROFILES = {"Schedule": qos.SCHEDULE, "ServerStatus": qos.SERVER_STATUS}


def main(rate_hz: float, kind: str, topic: str, files: list[str]) -> None:
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    rclpy.init()
    node = Node("intruder", enable_rosout=False, start_parameter_services=False)
    publisher = node.create_publisher(getattr(msg, kind), topic, PROFILES[kind])
    messages, begin_s, said = [Path(file).read_bytes() for file in files], time.monotonic(), 0
    while not over.is_set():
        publisher.publish(messages[said % len(messages)])
        said += 1
        if said == 1:
            print("begun", flush=True)
        time.sleep(max(0.0, begin_s + said / rate_hz - time.monotonic()))
    print(f"said {said} in {time.monotonic() - begin_s:.1f} s", flush=True)
    node.destroy_node()
    rclpy.try_shutdown()


@contextmanager
def flood(folder: Path, kind: type, topic: str, messages: list[bytes], rate_hz: float = 1000.0) -> Iterator[Callable[[], str]]:
    """While the block runs. The function: what it has said, once it is over."""
    import subprocess

    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{i}.bin" for i in range(len(messages))]
    for file, message in zip(files, messages, strict=True):
        file.write_bytes(message)
    command = [sys.executable, "-W", "ignore", "-m", "test.ros.flood", str(rate_hz), kind.__name__, topic, *map(str, files)]
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
