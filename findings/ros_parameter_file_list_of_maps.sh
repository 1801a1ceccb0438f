#!/usr/bin/env bash
# rcl's parameter file parser turns a list of maps into one array under a name that nobody wrote.
#
# Versions: rclpy 9.1.2, rcl_yaml_param_parser 10.1.3 (ROS 2 Kilted); Python 3.11, Debian 12.
# Expected: `joints: [{limit: 1.5}, {limit: 2.5}]` is refused, as ROS parameters have no lists of maps (a list in a list is refused).
# Seen: no error. The node gets one parameter `joints.limit.limit`, an array [1.5, 2.5]: each map's key is appended to the name, and all
#   values go into one array. Nothing is named `joints`, so that a node which declares `joints` keeps its default in silence.
# Date: 2026-11-29.
# Why it matters: a list of maps is how most people would write joints, cameras or limits of a robot in YAML. Their limits are ignored
#   without a word.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check 'ros-rclpy[fastrtps]==9.1.2' 'ros-rcl-yaml-param-parser==10.1.3'
cat > "$folder/robot.yaml" <<'YAML'
/**:
  ros__parameters:
    joints: [{limit: 1.5}, {limit: 2.5}]
YAML
cat > "$folder/read.py" <<'PYTHON'
import sys

import rclpy
from rclpy.node import Node

rclpy.init(args=["--ros-args", "--params-file", sys.argv[1]])
node = Node("reader", automatically_declare_parameters_from_overrides=True)
found = {name: list(one.value) for name, one in node.get_parameters_by_prefix("").items() if name.startswith("joints")}
node.destroy_node()
rclpy.shutdown()
print(found)
if found != {"joints.limit.limit": [1.5, 2.5]}:
    sys.exit("the behaviour has changed")
PYTHON
ROS_AUTOMATIC_DISCOVERY_RANGE=OFF ROS_LOG_DIR="$folder/log" "$folder/venv/bin/python" -W ignore "$folder/read.py" "$folder/robot.yaml"
# Output, 2026-11-29: {'joints.limit.limit': [1.5, 2.5]}
