"""Starts a factory with ROS 2 launch: the same nodes as `rfm up`, from the same descriptor.

ros2 launch rfm_serving factory.launch.py factory:=my_factory.yaml log_level:=debug
"""

import tempfile
from pathlib import Path

from ament_index_python.packages import get_package_share_directory
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from launch import LaunchDescription
from ros2_rfm_serving.factory import load_factory
from ros2_rfm_serving.factory.nodes import node_list, write_parameters

SHARE = Path(get_package_share_directory("rfm_serving"))
ARGUMENTS = {
    "factory": (str(SHARE / "config" / "factory_quickstart.yaml"), "Factory descriptor (YAML)"),
    "profiles": ("", "Folder of latency profiles and models.yaml; empty: the shipped one"),
    "namespace": ("", "Namespace of the whole factory; empty: none"),
    "params_file": ("", "ROS parameters for every node, over the generated ones; empty: none"),
    "use_sim_time": ("false", "Use /clock for the stamps of messages; control always follows this machine's monotonic clock"),
    "log_level": ("info", "debug, info, warn, error or fatal"),
    "simulated_robots": ("true", "Start the simulated robots of the descriptor; false: real ones are there"),
    "foreman": ("true", "Give every robot its task over and over"),
}


def nodes(context):
    """The launch actions of the descriptor's nodes."""
    value = {name: LaunchConfiguration(name).perform(context) for name in ARGUMENTS}
    work = {} if value["foreman"] == "true" else None
    profiles = Path(value["profiles"]) if value["profiles"] else None
    factory = load_factory(Path(value["factory"]))
    specs = node_list(factory, SHARE / "config", fleet_namespace=value["namespace"], work=work, profiles=profiles)
    folder = Path(tempfile.mkdtemp(prefix="rfm_serving_"))
    actions = []
    for spec in specs:
        if spec.simulated and value["simulated_robots"] != "true":
            continue
        file = folder / f"{spec.name}.yaml"
        write_parameters(spec, file)
        actions.append(
            Node(
                package="rfm_serving",
                executable=spec.executable,
                namespace="/".join(part for part in (value["namespace"].strip("/"), spec.namespace) if part),
                parameters=[
                    str(file),
                    {"use_sim_time": value["use_sim_time"] == "true"},
                    *([value["params_file"]] if value["params_file"] else []),
                ],
                arguments=["--ros-args", "--log-level", value["log_level"]],
                output="screen",
                respawn=True,
                respawn_delay=2.0,
            )
        )
    return actions


def generate_launch_description():
    """Called by `ros2 launch`."""
    declared = [DeclareLaunchArgument(name, default_value=d, description=text) for name, (d, text) in ARGUMENTS.items()]
    return LaunchDescription([*declared, OpaqueFunction(function=nodes)])
