#!/usr/bin/env bash
# One ROS 2 parameter file means two things to one installation of rclpy.
#
# Versions: rclpy 9.1.2, rcl_yaml_param_parser 10.1.3 (ROS 2 Kilted), PyYAML 6.0.3; Python 3.11, Debian 12.
# Expected: a node that is started with `--params-file FILE` and one that is given FILE later through rclpy's own reader
#   (`rclpy.parameter.parameter_dict_from_yaml_file`, which `ros2 param load` calls) get the same values.
# Seen: the first is read by rcl's parser in C (strtoll with base 0, strtod), the second by PyYAML (YAML 1.1). Of eight plain scalars
#   seven differ, in value and in type: 1e-3 is a number to the one and a text to the other, `1:30` is a text here and 90 there, `y` is
#   true here and a text there. A file with `1e-3` thus starts a node and is refused, by the type of the parameter, when it is loaded again.
# Date: 2026-11-29.
# Why it matters: tolerances and gains are written like this every day, and any tool that reads such files with a YAML library (checkers,
#   launch generators, rfm_serving before this was found) calls files invalid that work, or the other way round.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check 'ros-rclpy[fastrtps]==9.1.2' 'ros-rcl-yaml-param-parser==10.1.3' 'pyyaml==6.0.3'
cat > "$folder/robot.yaml" <<'YAML'
/**:
  ros__parameters:
    tolerance: 1e-3
    gain: 2e0
    enabled: y
    duration: 1:30
    mode: 0o10
    count: 1_000
    limit: inf
    index: 08
YAML
cat > "$folder/read.py" <<'PYTHON'
import sys

import rclpy
from rclpy.node import Node
from rclpy.parameter import parameter_dict_from_yaml_file, parameter_value_to_python

file = sys.argv[1]
rclpy.init(args=["--ros-args", "--params-file", file])
node = Node("reader", automatically_declare_parameters_from_overrides=True)
later = {name: parameter_value_to_python(one.value) for name, one in parameter_dict_from_yaml_file(file, use_wildcard=True).items()}
found = {name: (node.get_parameter(name).value, value) for name, value in later.items()}
node.destroy_node()
rclpy.shutdown()
for name, (at_start, loaded) in found.items():
    print(f"{name:10} at start {at_start!r:8} loaded later {loaded!r}")
expected = {
    "tolerance": (0.001, "1e-3"),
    "gain": (2.0, "2e0"),
    "enabled": (True, "y"),
    "duration": ("1:30", 90),
    "mode": ("0o10", "0o10"),
    "count": ("1_000", 1000),
    "limit": (float("inf"), "inf"),
    "index": (8.0, "08"),
}
if found != expected:
    sys.exit("the behaviour has changed")
PYTHON
ROS_AUTOMATIC_DISCOVERY_RANGE=OFF ROS_LOG_DIR="$folder/log" "$folder/venv/bin/python" -W ignore "$folder/read.py" "$folder/robot.yaml"
# Output, 2026-11-29:
#   tolerance  at start 0.001    loaded later '1e-3'
#   gain       at start 2.0      loaded later '2e0'
#   enabled    at start True     loaded later 'y'
#   duration   at start '1:30'   loaded later 90
#   mode       at start '0o10'   loaded later '0o10'
#   count      at start '1_000'  loaded later 1000
#   limit      at start inf      loaded later 'inf'
#   index      at start 8.0      loaded later '08'
