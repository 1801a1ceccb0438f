"""A robot with a session of its own that asks far too often, in a process of its own: every observation is newer, and sealed.

python -m test.ros.valid_flood RATE_HZ TEMPLATE KEY; two files: an observation of its session, as bytes, and the key of its seals.
Until its standard input ends.
"""

from __future__ import annotations

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
from rclpy.serialization import deserialize_message, serialize_message
from rfm_serving import msg

from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.ros.wire.proofs import sealed_observation


def main(rate_hz: float, template: Path, key: Path) -> None:
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    rclpy.init()
    node = Node("intruder", enable_rosout=False, start_parameter_services=False)
    publisher = node.create_publisher(msg.Observation, qos.Names().server("s1", "observation"), qos.OBSERVATION_SENT)
    observation, seal_by = deserialize_message(template.read_bytes(), msg.Observation), key.read_bytes()
    while not publisher.get_subscription_count():
        time.sleep(0.02)
    begin_s, said = time.monotonic(), 0
    while not over.is_set():
        observation.id.sequence += 1
        publisher.publish(sealed_observation(observation, seal_by))
        said += 1
        if said == 1:
            print("begun", flush=True)
        time.sleep(max(0.0, begin_s + said / rate_hz - time.monotonic()))
    print(f"{said / (time.monotonic() - begin_s):.0f}/s", flush=True)
    node.destroy_node()
    rclpy.try_shutdown()


@contextmanager
def valid_flood(folder: Path, observation: Any, key: bytes, rate_hz: float = 1000.0) -> Iterator[Callable[[], str]]:
    """While the block runs. The function: how often it has asked, once it is over."""
    template, seal_by = folder / "observation.bin", folder / "key.bin"
    template.write_bytes(serialize_message(observation))
    seal_by.write_bytes(key)
    command = [sys.executable, "-W", "ignore", "-m", "test.ros.valid_flood", str(rate_hz), str(template), str(seal_by)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    told = []
    try:
        yield lambda: told[0]
    finally:
        told.append(process.communicate(timeout=60)[0].strip())


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
