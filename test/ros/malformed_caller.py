"""Sends bytes as requests of services, as nobody can with ROS alone: `python malformed_caller.py SERVICE=MODULE.TYPE.PART ...`.
A line `SERVICE HEXDIGITS` on standard input is a request, and is answered by a line when it is sent.

A topic of DDS is what ROS calls it, behind a prefix that says what it is: here topics have that of requests.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import mmap
import sys
import time
from typing import Any

import rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile

READ_WRITE = 1 | 2
MATCHED_WITHIN_S = 90.0


def take_prefix(prefix: bytes) -> Any:
    """Of topics that are created from now on. Returns what must stay in memory."""
    variable = ctypes.c_void_p.in_dll(ctypes.CDLL("librmw_fastrtps_shared_cpp.so"), "ros_topic_prefix")
    page = ctypes.addressof(variable) // mmap.PAGESIZE * mmap.PAGESIZE
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), 2 * mmap.PAGESIZE, READ_WRITE) == 0
    kept = ctypes.create_string_buffer(prefix)
    variable.value = ctypes.addressof(kept)
    return kept


def generated(path: str) -> Any:
    module, *parts = path.split(".")
    found: Any = importlib.import_module(f"rfm_serving.{module}")
    for part in parts:
        found = getattr(found, part)
    return found


def main(services: list[str]) -> None:
    rclpy.init(args=[])
    node = Node("malformed_caller", enable_rosout=False, start_parameter_services=False)
    kept = take_prefix(b"rq")
    out = {}
    for name, _, kind in (service.partition("=") for service in services):
        out[name] = node.create_publisher(generated(kind), f"{name}Request", QoSProfile(depth=1000))
    ends_s = time.monotonic() + MATCHED_WITHIN_S
    while not all(publisher.get_subscription_count() for publisher in out.values()) and time.monotonic() < ends_s:
        time.sleep(0.05)
    print(sum(publisher.get_subscription_count() for publisher in out.values()), flush=True)
    for line in sys.stdin:
        name, _, data = line.rstrip().partition(" ")
        with contextlib.suppress(RuntimeError):  # more than its type can ever have
            out[name].publish(bytes.fromhex(data))
        print("sent", flush=True)
    del kept


if __name__ == "__main__":
    main(sys.argv[1:])
