"""Shows robots in rviz: markers, and for simulated arms their model, each where there is room for it.

ros2 launch rfm_serving view.launch.py robots:="pick_place_1 door_open_1 push_1"
"""

from pathlib import Path

from ament_index_python.packages import get_package_share_directory
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from launch import LaunchDescription
from ros2_rfm_serving.factory.graph_names import launched_namespaces

SHARE = Path(get_package_share_directory("rfm_serving"))
ARGUMENTS = {
    "robots": ("pick_place_1 door_open_1 push_1", "Names, with spaces between them"),
    "description": (str(SHARE / "config" / "robots" / "metaworld_arm.urdf"), "URDF of every one of them; empty: markers alone"),
    "spacing_m": ("1.5", "From one robot to the next, along x"),
    "namespace": ("", "Namespace of the whole factory, below what PushRosNamespace pushed; empty: none"),
    "rviz": ("true", "Start rviz2; false: somebody else does"),
    "rviz_config": (str(SHARE / "config" / "rviz" / "factory.rviz"), "What rviz2 shows"),
}


def below(root, name):
    """A namespace, absolute where `root` is."""
    return "/" * root.startswith("/") + "/".join(part for part in (root.strip("/"), name) if part)


def nodes(context):
    """The launch actions."""
    value = {name: LaunchConfiguration(name).perform(context) for name in ARGUMENTS}
    fleet_root, root = launched_namespaces(LaunchConfiguration("ros_namespace", default="").perform(context), value["namespace"])
    description = Path(value["description"]).read_text(encoding="utf-8") if value["description"] else ""
    fleet = [{"fleet_namespace": fleet_root}] if fleet_root else []
    made = [Node(package="rfm_serving", executable="markers_node", namespace=below(root, "rfm"), parameters=fleet, output="screen")]
    for place, robot in enumerate(value["robots"].split()):
        frames = below(fleet_root, robot).strip("/")  # two cells may have robots of the same names
        offset = ["--x", str(place * float(value["spacing_m"])), "--frame-id", "factory", "--child-frame-id", f"{frames}/base"]
        made.append(Node(package="tf2_ros", executable="static_transform_publisher", arguments=offset))
        if description:
            parameters = [{"robot_description": description, "frame_prefix": f"{frames}/"}]
            namespace = below(root, robot)
            made.append(
                Node(
                    package="robot_state_publisher", executable="robot_state_publisher", namespace=namespace, parameters=parameters
                )
            )
    if value["rviz"].lower() == "true":
        made.append(Node(package="rviz2", executable="rviz2", arguments=["-d", value["rviz_config"]]))
    return made


def generate_launch_description():
    """Called by `ros2 launch`."""
    declared = [DeclareLaunchArgument(name, default_value=default, description=text) for name, (default, text) in ARGUMENTS.items()]
    return LaunchDescription([*declared, OpaqueFunction(function=nodes)])
