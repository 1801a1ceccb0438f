#!/usr/bin/env bash
# rclpy holds Python's global lock during `Publisher.publish`: no other thread of the process runs until the middleware returns.
#
# Versions: ros-rclpy 9.1.2 with rmw_fastrtps_cpp 9.3 (wheels); Python 3.11, Debian 12.
# Expected: a call that may wait for the middleware lets other threads run, as `socket.send`, `time.sleep` and rclpy's own `spin` do.
# Seen: a thread that wakes every 5 ms runs some 190 times in a second in which the main thread sleeps. While the main thread publishes large
#   messages, which takes 50 ms each, it runs once between two calls and never during one.
# Date: 2026-11-29.
# Why it matters: where `publish` waits (a large image, a slow or stuck reader, shared memory that a killed process has locked), so does everything in
#   Python: watchdogs in threads, log output, signal handlers, other executors. A watchdog of a robot's node has to live outside of the interpreter.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/publish.py" <<'PYTHON'
import threading
import time

import rclpy
from rclpy.node import Node
from std_msgs.msg import UInt8MultiArray

turns = 0
over = threading.Event()


def count():
    global turns
    while not over.wait(0.005):
        turns += 1


rclpy.init()
node = Node("camera")
publisher = node.create_publisher(UInt8MultiArray, "image", 1)
node.create_subscription(UInt8MultiArray, "image", lambda message: None, 1)
message = UInt8MultiArray(data=bytes(50_000_000))
threading.Thread(target=count, daemon=True).start()
begun, turns = time.monotonic(), 0
time.sleep(1.0)
asleep = turns / (time.monotonic() - begun)
begun, turns, calls = time.monotonic(), 0, 0
while time.monotonic() - begun < 3.0:
    publisher.publish(message)
    calls += 1
publishing, took = turns, time.monotonic() - begun
over.set()
print(f"turns of the thread: {asleep:.0f} per second while the main thread sleeps; {publishing} in {took:.1f} s of {calls} calls of publish")
print("asleep it runs:", asleep > 50, "- publishing, once per call at most:", publishing <= calls + 1)
PYTHON
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check 'ros-rclpy[fastrtps]==9.1.2' 'ros-std-msgs==5.5.*'
seen=$(ROS_DOMAIN_ID=77 "$folder/venv/bin/python" "$folder/publish.py")
echo "$seen"
[ "$(tail -1 <<< "$seen")" = "asleep it runs: True - publishing, once per call at most: True" ] || { echo "the behaviour has changed"; exit 1; }
# Output, 2026-11-29:
#   turns of the thread: 191 per second while the main thread sleeps; 58 in 3.0 s of 58 calls of publish
#   asleep it runs: True - publishing, once per call at most: True
