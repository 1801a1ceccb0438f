"""Starts a factory with ROS 2 launch: the same nodes as `rfm up`, from the same descriptor.

ros2 launch rfm_serving factory.launch.py factory:=my_factory.yaml log_level:=debug
ros2 launch rfm_serving factory.launch.py factory:=my_factory.yaml host:=gpu_a

A node that ends is started again, except when it says by its exit code that it cannot run as it is configured.
"""

import dataclasses
import os
from pathlib import Path

from ament_index_python.packages import get_package_share_directory
from launch.actions import (
    DeclareLaunchArgument,
    EmitEvent,
    LogInfo,
    OpaqueFunction,
    RegisterEventHandler,
    SetEnvironmentVariable,
    UnsetEnvironmentVariable,
)
from launch.event_handlers import OnShutdown
from launch.events import matches_action
from launch.events.process import ShutdownProcess
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from launch import LaunchDescription
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Catalogue, load_factory
from ros2_rfm_serving.factory.cluster import AUTOMATIC
from ros2_rfm_serving.factory.dds import dds_profile
from ros2_rfm_serving.factory.environment import discovery_environment
from ros2_rfm_serving.factory.graph_names import launched_namespaces
from ros2_rfm_serving.factory.nodes import node_list, recorder_node, write_parameters
from ros2_rfm_serving.operate.commands import full_namespace, node_environment
from ros2_rfm_serving.operate.doctor.host import shared_gpu
from ros2_rfm_serving.operate.drafts import check_nodes
from ros2_rfm_serving.operate.held_folder import HeldFolder
from ros2_rfm_serving.operate.inputs import decided
from ros2_rfm_serving.operate.rates import check_rates
from ros2_rfm_serving.operate.supervisor import patience_s
from ros2_rfm_serving.profiles import load_profiles
from ros2_rfm_serving.ros.node.discovery_server import part_of
from ros2_rfm_serving.ros.node.middleware import PROFILES_FILE, is_read, use_partition, use_profile
from ros2_rfm_serving.ros.node.process import EXIT_CONFIGURATION, LogLevel

SHARE = Path(get_package_share_directory("rfm_serving"))
ARGUMENTS = {
    "factory": (str(SHARE / "config" / "factory_quickstart.yaml"), "Factory descriptor (YAML)"),
    "host": ("", "Start what runs on this host of the descriptor; empty: all, on this machine"),
    "profiles": ("", "Folder of latency profiles and models.yaml; empty: the shipped one"),
    "namespace": (
        "",
        "Namespace of the whole factory, below a pushed one; with a slash in front: it alone; empty: the descriptor's",
    ),
    "params_file": ("", "ROS parameters for every node, over the generated ones; empty: none"),
    "use_sim_time": (
        "false",
        "Use /clock for stamps and the ages of readings; control always follows this machine's monotonic clock",
    ),
    "log_level": ("info", "Of every node"),
    "simulated_robots": ("true", "Start the simulated robots of the descriptor; false: real ones are there"),
    "foreman": ("true", "Give every robot its task over and over"),
    "record": ("", "Folder to record to, as `rfm record` does; empty: nothing is recorded"),
}
CHOICES = {"log_level": [level.value for level in LogLevel]}
TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def truth(value, name):
    """Of a launch argument, in any spelling that people use."""
    if value[name].lower() not in TRUTH:
        raise ConfigurationError(f"{value[name]!r} is neither true nor false", key=name, fix=f"write one of {', '.join(TRUTH)}")
    return TRUTH[value[name].lower()]


def nodes(context):
    """The launch actions of the descriptor's nodes."""
    value = {name: LaunchConfiguration(name).perform(context) for name in ARGUMENTS}
    work = {} if truth(value, "foreman") else None
    simulated, sim_time = truth(value, "simulated_robots"), {"use_sim_time": truth(value, "use_sim_time")}
    profiles = Path(value["profiles"]) if value["profiles"] else None
    factory = load_factory(Path(value["factory"]))
    factory = factory if value["host"] else factory.on_one_machine()
    folder = profiles or SHARE / "config" / "profiles"
    catalogue = Catalogue.load(folder / "models.yaml")
    if AUTOMATIC in factory.dispatch.values():
        factory = decided(factory, load_profiles(folder), catalogue)
    pushed = LaunchConfiguration("ros_namespace", default="").perform(context)  # a name that launch_ros gives
    fleet, value["namespace"] = launched_namespaces(pushed, value["namespace"] or factory.discovery.namespace)
    heard = discovery_environment(factory, value["host"])
    listed = node_list(factory, SHARE / "config", fleet_namespace=fleet, work=work, profiles=profiles)
    check_rates(factory, catalogue)
    warnings = check_nodes(listed, factory.file)
    if not value["host"]:
        warnings += shared_gpu(factory, profiles or SHARE / "config" / "profiles")
    warned = [LogInfo(msg=f"warning: {text}") for text in warnings]
    specs = [spec for spec in listed if simulated or not spec.simulated]
    folder = HeldFolder("rfm_serving_launch_")  # removed at shutdown, or when this process ends, or by the next launch
    profile = profile_of(specs, factory.discovery.partition, folder.path)
    if value["host"]:
        specs = part_of(specs, factory, value["host"], folder.path)
    actions = [RegisterEventHandler(OnShutdown(on_shutdown=lambda event, context: folder.cleanup())), *warned, *profile]
    actions += [SetEnvironmentVariable(name, text) if text else UnsetEnvironmentVariable(name) for name, text in heard.items()]
    for spec in [*recorder_node(value["record"], fleet, factory), *specs]:
        file = folder.path / f"{spec.name}.yaml"
        write_parameters(dataclasses.replace(spec, parameters={**spec.parameters, **sim_time}), file)
        actions.append(node(spec, file, value))
    return actions


def profile_of(specs, partition, folder):
    """The Fast DDS profile that holds what their cameras make, or that the user has chosen, in the descriptor's partition; none
    where it is what they have anyway."""
    profile, environment, actions = dds_profile(specs), dict(os.environ), []
    if is_read() and use_profile(profile.file, environment):
        actions.append(LogInfo(msg=f"Fast DDS profile {profile.file}: {profile.reason} (another one: {PROFILES_FILE})"))
    if partition:
        use_partition(partition, folder, environment)
    if environment != os.environ:
        actions.append(SetEnvironmentVariable(PROFILES_FILE, environment[PROFILES_FILE]))
    return actions


def node(spec, file, value):
    """One process. Its parameters are a file of ours: launch leaves the files behind that it makes of dictionaries."""
    started = Node(
        package="rfm_serving",
        executable=spec.executable,
        namespace="/" * value["namespace"].startswith("/") + full_namespace(spec, value["namespace"]),
        parameters=[str(file), *([value["params_file"]] if value["params_file"] else [])],
        arguments=["--ros-args", "--log-level", value["log_level"]],
        additional_env={**node_environment(os.environ), **spec.environment},
        output="screen",
        sigterm_timeout=LaunchConfiguration("sigterm_timeout", default=str(patience_s(spec))),
        respawn=True,
        respawn_delay=2.0,
        on_exit=lambda event, context: given_up(spec, started) if event.returncode == EXIT_CONFIGURATION else None,
    )
    return started


def given_up(spec, started):
    """Tells launch that this process was shut down on purpose."""
    return [
        LogInfo(msg=f"{spec.name} cannot run as it is configured and is not started again; its log says why"),
        EmitEvent(event=ShutdownProcess(process_matcher=matches_action(started))),
    ]


def generate_launch_description():
    """Called by `ros2 launch`."""
    declared = [
        DeclareLaunchArgument(name, default_value=default, description=text, choices=CHOICES.get(name))
        for name, (default, text) in ARGUMENTS.items()
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=nodes)])
