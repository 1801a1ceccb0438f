#!/usr/bin/env bash
# With Fast DDS a process cannot publish one type and take another on the same topic, not even with two nodes.
#
# Versions: rclpy 9.1.2, rmw_fastrtps_cpp 9.3.x (ROS 2 Kilted), geometry_msgs 5.5.x; Python 3.11, Debian 12.
# Expected: topics of ROS 2 are matched by name *and* type, so endpoints of two types on one name just do not match one another; between two
#   processes that is so.
# Seen: within one process (one context, and so one DDS participant) creating the second one raises RCLError, "called for existing topic name
#   rt/cmd_vel with incompatible type", for a publisher, a subscription, and another node alike. After the first endpoint is destroyed the
#   second can be created.
# Date: 2026-11-29.
# Why it matters: `cmd_vel` is `Twist` for some controllers and `TwistStamped` for others. A driver or bridge that wants to serve both, or to
#   follow its subscriber from one to the other, has to destroy its publisher first; components that are composed into one process fail to
#   start though each of them works alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check 'ros-rclpy[fastrtps]==9.1.2' 'ros-rmw-fastrtps-cpp==9.3.*' 'ros-geometry-msgs==5.5.*'
cat > "$folder/two.py" <<'PYTHON'
import sys

import rclpy
from geometry_msgs.msg import Twist, TwistStamped
from rclpy.node import Node
from rclpy._rclpy_pybind11 import RCLError

rclpy.init()
node, other = Node("driver"), Node("bridge")
first = node.create_publisher(Twist, "cmd_vel", 1)


def can(create):
    try:
        create()
    except RCLError:
        return False
    return True


found = {
    "a publisher": can(lambda: node.create_publisher(TwistStamped, "cmd_vel", 1)),
    "a subscription": can(lambda: node.create_subscription(TwistStamped, "cmd_vel", print, 1)),
    "another node's subscription": can(lambda: other.create_subscription(TwistStamped, "cmd_vel", print, 1)),
}
node.destroy_publisher(first)
found["after the first was destroyed"] = can(lambda: node.create_publisher(TwistStamped, "cmd_vel", 1))
rclpy.shutdown()
for what, fine in found.items():
    print(f"{what}: {'fine' if fine else 'RCLError'}")
if list(found.values()) != [False, False, False, True]:
    sys.exit("the behaviour has changed")
PYTHON
ROS_DOMAIN_ID=78 ROS_AUTOMATIC_DISCOVERY_RANGE=OFF ROS_LOG_DIR="$folder/log" "$folder/venv/bin/python" -W ignore "$folder/two.py"
# Output, 2026-11-29:
#   a publisher: RCLError
#   a subscription: RCLError
#   another node's subscription: RCLError
#   after the first was destroyed: fine
