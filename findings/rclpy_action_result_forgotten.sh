#!/usr/bin/env bash
# rclpy's action server forgets a result after ten seconds, and then answers with an empty one that looks like a success.
#
# Versions: rclpy 9.1.2 (ROS 2 Kilted), test_msgs 2.3.0; Python 3.11, Debian 12.
# Expected: a client that asks for the result of an aborted goal late learns that it was aborted, or gets an error.
# Seen: until ten seconds after the goal ended (`result_timeout=10`, the default) the answer is status 6 (ABORTED) with the result that was
#   set. After that the answer is status 0 (UNKNOWN) with a message of default values; the server logs a warning, the client sees no error. An `error_code` in the
#   result then reads 0, which nearly every action defines as success.
# Date: 2026-11-29.
# Why it matters: behaviour trees and operators' pages ask late: after a pause, a restart, or a lost connection. Whoever reads the result
#   without the status takes a failed task for a done one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check 'ros-rclpy[fastrtps]==9.1.2' 'ros-test-msgs==2.3.0'
cat > "$folder/ask.py" <<'PYTHON'
import sys
import threading
import time

import rclpy
from rclpy.action import ActionClient, ActionServer
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from test_msgs.action import Fibonacci


def work(goal):
    goal.abort()
    return Fibonacci.Result(sequence=[4, 0, 1])  # stands for an error code and its reason


rclpy.init()
node = Node("robot")
server = ActionServer(node, Fibonacci, "task", work)
client = ActionClient(node, Fibonacci, "task")
executor = SingleThreadedExecutor()
executor.add_node(node)
thread = threading.Thread(target=executor.spin, daemon=True)
thread.start()


def wait(future, seconds=60.0):
    until = time.monotonic() + seconds
    while not future.done() and time.monotonic() < until:
        time.sleep(0.05)
    return future.result()


assert client.wait_for_server(60.0)
goal = wait(client.send_goal_async(Fibonacci.Goal(order=3)))
answers = []
for pause in (1.0, 15.0):
    time.sleep(pause)
    answer = wait(goal.get_result_async())
    answers.append((answer.status, list(answer.result.sequence)))
    print(f"asked {pause:.0f} s later: status {answer.status}, result {list(answer.result.sequence)}")
executor.shutdown()
thread.join()
rclpy.shutdown()
if answers != [(6, [4, 0, 1]), (0, [])]:
    sys.exit("the behaviour has changed")
PYTHON
ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST ROS_DOMAIN_ID=77 ROS_LOG_DIR="$folder/log" "$folder/venv/bin/python" -W ignore "$folder/ask.py"
# Output, 2026-11-29:
#   asked 1 s later: status 6, result [4, 0, 1]
#   asked 15 s later: status 0, result []
