"""What is declared is what runs: every key of the descriptor, followed into the live body and into virtual time."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

import pytest
import rclpy
import yaml
from pydantic import BaseModel
from rclpy.node import Node
from rclpy.parameter import Parameter

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import Catalogue, Factory, load_factory, parse_factory
from ros2_rfm_serving.factory.cluster import Planning, ServerCluster, Standby
from ros2_rfm_serving.factory.fleet import FleetEntry
from ros2_rfm_serving.factory.nodes import NodeSpec, merged_parameters, node_list
from ros2_rfm_serving.factory.task import TaskEntry
from ros2_rfm_serving.profiles import Profile
from ros2_rfm_serving.robot.config import RobotConfig
from ros2_rfm_serving.ros.node.draft import draft, flat
from ros2_rfm_serving.ros.node.parameters import declare
from ros2_rfm_serving.ros.robot.settings import RobotSettings, robot_settings
from ros2_rfm_serving.ros.server.loading import _ready
from ros2_rfm_serving.ros.server.settings import SPECS, server_params
from ros2_rfm_serving.scheduler.build_problem import problem_of
from ros2_rfm_serving.server import ServerConfig
from ros2_rfm_serving.simulation import SimulationConditions
from ros2_rfm_serving.simulation.simulate import Simulation
from ros2_rfm_serving.simulation.timing import Timing
from ros2_rfm_serving.simulation.world import World
from ros2_rfm_serving.types import Placement, Route, Schedule
from test.unit.fakes import FakeEngine

from .parameters import settings

BASE = """
server_cluster:
  - num_servers: 2
    gpu_type: CPU
    dispatch: fifo
    batching: fixed
    refetch_after_ms: 0
    hosts: [gpu_a, gpu_b]
    overflow: {url: "ws://elsewhere:8000", round_trip_ms: 50, token_env: TOKEN}
  - {num_servers: 1, gpu_type: OTHER, batching: continuous}
standby: {num_servers: 0, peers: true, same_host: false}
hosts:
  gpu_a: {address: 10.0.0.1, gpus: {CPU: 2, GPU: 2, OTHER: 1}}
  gpu_b: {address: 10.0.0.2, gpus: {CPU: 2, GPU: 2}, bandwidth_mbit_s: 100}
planning: {slo_margin: 0.1, stragglers: {share: 0.01, factor: 3}}
robot_fleet: [{task: pick, num_robots: 2, network: {round_trip_ms: 4, jitter_ms: 2, observation_kb: 30}}]
pick:
  pipeline: {action_period_ms: 200, system2_to_system1_call_ratio: 0.1}
  execution:
    mode: async
    horizon: {policy: confidence, threshold: 0.4, min_steps: 2, mean_period_ms: 300}
    pipelining: {pp_perception: 1, pp_generation: 2, alpha: 0.5, fetch_offset: 0}
    num_steps: 6
  task_retry: {max_task_retries: 1, on_max_task_retries: stop_and_call_human}
  safety_and_slo_violation:
    max_consecutive_safety_replan: 5
    max_consecutive_slo_violation: 6
    on_max_violation: stop_and_call_human
  value: 1
  percentile: 99
  min_action_rate_hz: {per_robot: 0.5}
  robot: ""
  image_size_px: [64, 64]
  world: {simulator: metaworld, task: push, control_rate_hz: 20, camera_rate_hz: 5, seed: 3, interface: native}
  components:
    system1: {model: rfm/metaworld-flow, prompt: push, slo_ms: 400, percentile: 95, fallback: stop_and_resend}
    system2: {model: rfm/metaworld-planner, prompt: plan, slo_ms: 900}
    monitor: {model: rfm/metaworld-judge, prompt: done, freq_hz: 2}
    grasp: {model: rfm/metaworld-stages, prompt: where, call_ratio: 0.5}
"""
PICK, GROUP, SYSTEM1 = ("pick",), ("server_cluster", 0), ("pick", "components", "system1")
HORIZON = yaml.safe_load(BASE)["pick"]["execution"]["horizon"]
CHANGED: dict[str, tuple[tuple[str | int, ...], Any]] = {
    "server_cluster.num_servers": ((*GROUP, "num_servers"), 3),
    "server_cluster.gpu_type": ((*GROUP, "gpu_type"), "GPU"),
    "server_cluster.dispatch": ((*GROUP, "dispatch"), "wait_ratio"),
    "server_cluster.batching": ((*GROUP, "batching"), "saturation"),
    "server_cluster.parity": ((*GROUP, "parity"), "at_start"),
    "server_cluster.threads": ((*GROUP, "threads"), 2),
    "server_cluster.cores": ((*GROUP, "cores"), ["0", "0"]),
    "server_cluster.refetch_after_ms": ((*GROUP, "refetch_after_ms"), 60),
    "server_cluster.overflow.url": ((*GROUP, "overflow", "url"), "ws://there:1"),
    "server_cluster.overflow.round_trip_ms": ((*GROUP, "overflow", "round_trip_ms"), 80),
    "server_cluster.overflow.batches_in_flight": ((*GROUP, "overflow", "batches_in_flight"), 4),
    "server_cluster.overflow.token_env": ((*GROUP, "overflow", "token_env"), "OTHER"),
    "standby.num_servers": (("standby", "num_servers"), 1),
    "server_cluster.hosts": ((*GROUP, "hosts"), ["gpu_b"]),
    "standby.same_host": (("standby", "same_host"), True),
    "standby.peers": (("standby", "peers"), False),
    "robot_fleet.task": (("robot_fleet", 0, "task"), "other"),
    "robot_fleet.num_robots": (("robot_fleet", 0, "num_robots"), 3),
    "robot_fleet.network.round_trip_ms": (("robot_fleet", 0, "network", "round_trip_ms"), 8),
    "robot_fleet.network.jitter_ms": (("robot_fleet", 0, "network", "jitter_ms"), 3),
    "robot_fleet.network.observation_kb": (("robot_fleet", 0, "network", "observation_kb"), 60),
    "robot_fleet.network.reply_kb": (("robot_fleet", 0, "network", "reply_kb"), 20),
    "planning.objective": (("planning", "objective"), "max_min"),
    "planning.slo_margin": (("planning", "slo_margin"), 0.2),
    "planning.stragglers.share": (("planning", "stragglers", "share"), 0.02),
    "planning.stragglers.factor": (("planning", "stragglers", "factor"), 4),
    "planning.link_share": (("planning", "link_share"), 0.1),
    "task.pipeline.action_period_ms": ((*PICK, "pipeline", "action_period_ms"), 400),
    "task.pipeline.system2_to_system1_call_ratio": ((*PICK, "pipeline", "system2_to_system1_call_ratio"), 0.2),
    "task.execution.mode": ((*PICK, "execution"), {"mode": "sync", "horizon": HORIZON}),
    "task.execution.accept_other_rate": ((*PICK, "execution", "accept_other_rate"), True),
    "task.execution.num_steps": ((*PICK, "execution", "num_steps"), 4),
    "task.execution.pipelining.pp_perception": ((*PICK, "execution", "pipelining", "pp_perception"), 2),
    "task.execution.pipelining.pp_generation": ((*PICK, "execution", "pipelining", "pp_generation"), 3),
    "task.execution.pipelining.alpha": ((*PICK, "execution", "pipelining", "alpha"), 1.0),
    "task.execution.pipelining.fetch_offset": ((*PICK, "execution", "pipelining", "fetch_offset"), -1),
    "task.execution.horizon.policy": ((*PICK, "execution", "horizon", "policy"), "curvature"),
    "task.execution.horizon.threshold": ((*PICK, "execution", "horizon", "threshold"), 0.5),
    "task.execution.horizon.min_steps": ((*PICK, "execution", "horizon", "min_steps"), 3),
    "task.execution.horizon.mean_period_ms": ((*PICK, "execution", "horizon", "mean_period_ms"), 250),
    "task.task_retry.max_task_retries": ((*PICK, "task_retry", "max_task_retries"), 2),
    "task.task_retry.on_max_task_retries": ((*PICK, "task_retry", "on_max_task_retries"), "return_to_safe_state"),
    **{
        f"task.safety_and_slo_violation.{key}": ((*PICK, "safety_and_slo_violation", key), value)
        for key, value in {
            "max_consecutive_safety_replan": 7,
            "max_consecutive_slo_violation": 7,
            "on_max_violation": "return_to_safe_state",
        }.items()
    },
    "task.value": ((*PICK, "value"), 2),
    "task.percentile": ((*PICK, "percentile"), 90),
    "task.min_action_rate_hz.per_robot": ((*PICK, "min_action_rate_hz"), {"per_robot": 0.6}),
    "task.min_action_rate_hz.per_class": ((*PICK, "min_action_rate_hz"), {"per_class": 3}),
    "task.robot": ((*PICK, "robot"), "metaworld_two_stages.yaml"),
    "task.image_size_px": ((*PICK, "image_size_px"), [96, 96]),
    "task.world.simulator": ((*PICK, "world"), None),
    "task.world.task": ((*PICK, "world", "task"), "reach"),
    "task.world.control_rate_hz": ((*PICK, "world", "control_rate_hz"), 40),
    "task.world.camera_rate_hz": ((*PICK, "world", "camera_rate_hz"), 6),
    "task.world.seed": ((*PICK, "world", "seed"), 4),
    "task.world.interface": ((*PICK, "world", "interface"), "foreign"),
    "task.components.model": ((*SYSTEM1, "model"), "rfm/metaworld-safety"),
    "task.components.engine": ((*SYSTEM1, "engine"), "fast"),
    "task.components.prompt": ((*SYSTEM1, "prompt"), "pull"),
    "task.components.slo_ms": ((*SYSTEM1, "slo_ms"), 300),
    "task.components.freq_hz": ((*PICK, "components", "monitor", "freq_hz"), 3),
    "task.components.call_ratio": ((*PICK, "components", "grasp", "call_ratio"), 0.25),
    "task.components.percentile": ((*SYSTEM1, "percentile"), 90),
    "task.components.fallback": ((*SYSTEM1, "fallback"), "use_last_plan"),
}
"""Key -> where it stands in BASE, and another value."""
VERDICTS = "no verdict says anything in virtual time; what fails or is late is counted there (goodput.py), not acted upon"
BODY = "how the robot is on the graph, and its physics: virtual time has neither"
ONLY_LIVE = {
    "server_cluster.overflow.url": "an address: virtual time has a GPU of its own there",
    "server_cluster.overflow.token_env": "goes with the address",
    "server_cluster.parity": "virtual time has no model to compare",
    "server_cluster.threads": "virtual time takes what a profile says of a batch, which was measured with as many",
    "server_cluster.cores": "virtual time has no processor",
    "task.task_retry.max_task_retries": VERDICTS,
    "task.task_retry.on_max_task_retries": VERDICTS,
    "task.safety_and_slo_violation.max_consecutive_safety_replan": VERDICTS,
    "task.safety_and_slo_violation.max_consecutive_slo_violation": VERDICTS,
    "task.safety_and_slo_violation.on_max_violation": VERDICTS,
    "task.components.fallback": VERDICTS,
    "task.execution.accept_other_rate": "virtual time has no demonstrations; a live robot refuses sessions by it",
    "task.robot": BODY,
    "task.world.simulator": BODY,
    "task.world.task": BODY,
    "task.world.camera_rate_hz": BODY,
    "task.world.seed": BODY,
    "task.world.interface": BODY,
    "task.image_size_px": "virtual time sees no images; `rfm profile --factory` measures with them",
}
"""Keys that change nothing in virtual time, and why."""


def keys(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """Of a section of the descriptor, with those of the sections within."""
    for name, field in model.model_fields.items():
        inner = [part for part in parts(field.annotation) if isinstance(part, type) and issubclass(part, BaseModel)]
        if inner:
            for section in inner:
                yield from keys(section, f"{prefix}.{name}")
        else:
            yield f"{prefix}.{name}"


def parts(annotation: Any) -> list[Any]:
    """A type, or what a union or a collection is made of."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType, dict) or hasattr(annotation, "__metadata__"):
        return [part for argument in inner for part in parts(argument)]
    return [annotation]


def test_every_key_of_the_descriptor_is_accounted_for() -> None:
    """A new key fails here, until somebody says what it changes."""
    sections = {
        "server_cluster": ServerCluster,
        "standby": Standby,
        "robot_fleet": FleetEntry,
        "planning": Planning,
        "task": TaskEntry,
    }
    assert {key for name, section in sections.items() for key in keys(section, name)} == set(CHANGED)
    assert set(ONLY_LIVE) <= set(CHANGED)


# --- the two bodies -------------------------------------------------------------------------------------------------------


class Body(NamedTuple):
    """All that the descriptor decides of it."""

    robots: dict[str, RobotConfig]
    servers: dict[str, ServerConfig]
    more: object
    """What has no counterpart in the other body."""


@pytest.fixture(scope="module")
def ros() -> Iterator[None]:
    rclpy.init()
    yield
    rclpy.try_shutdown()


def factory_of(tree: dict[str, Any], repository: Path) -> Factory:
    return parse_factory(yaml.safe_dump(tree), str(repository / "config" / "factory.yaml"))


def planned(factory: Factory, repository: Path) -> object:
    """What both bodies are told by the same schedule."""
    problem = problem_of(factory, {e.task: e.num_robots for e in factory.robot_fleet}, *timing(repository))
    return problem, factory.standby, [(r.name, r.task) for r in factory.robots]


@cache
def timing(repository: Path) -> tuple[Profile, Catalogue]:
    folder = repository / "config" / "profiles"
    text = (folder / "cpu.csv").read_text()
    rows = [line for line in text.splitlines() if line and not line.startswith(("#", "model,"))]
    catalogue = yaml.safe_load((folder / "models.yaml").read_text())
    for model in [name for name in catalogue["models"] if name.startswith("rfm/")]:
        entry = catalogue["models"][model]
        entry["gpus"]["GPU"] = entry["gpus"]["OTHER"] = entry["gpus"]["CPU"]
        catalogue["models"][f"{model}@fast"] = entry
    from ros2_rfm_serving.profiles import parse_profiles

    more = [r.replace(",CPU,", f",{gpu},") for gpu in ("GPU", "OTHER") for r in rows] + [
        r.replace("metaworld-flow,", "metaworld-flow@fast,") for r in rows if "metaworld-flow," in r
    ]
    return parse_profiles(text + "\n".join(more) + "\n"), Catalogue.model_validate(catalogue)


def schedule_of(factory: Factory) -> Schedule:
    """Component i of every robot on server i, as far as there are servers; which one does not matter here."""
    servers = [name for name, group in factory.groups.items() if group.batching != "continuous"]  # none of these models is stepped
    placements, routes = {}, []
    for robot in factory.robots:
        for i, (name, component) in enumerate(factory.tasks[robot.task].components.items()):
            server = servers[min(i, len(servers) - 1)]
            if i < len(servers):
                placements[server] = Placement(
                    server=server,
                    model=component.model,
                    components=(name,),
                    gpu_type=factory.gpu_types[server],
                    batching="fixed",
                    batch_size=1,
                    max_sessions=9,
                    predicted_p99_s=0.0,
                )
            routes.append(Route(robot=robot.name, component=name, server=server, max_rate_hz=1.0, slo_s=0.0))
    return Schedule(epoch=1, placements=tuple(placements.values()), routes=tuple(routes), predicted_actions_hz=0.0, policy="test")


def live(factory: Factory, repository: Path) -> Body:
    """As the nodes that `rfm up` starts read their parameters."""
    nodes = node_list(factory, repository / "config")
    robots = {n.name: robot_of(repr(n.parameters), n) for n in nodes if n.executable == "robot_node"}
    placements = {p.server: p for p in schedule_of(factory).placements}
    servers = {
        n.name: server_of(repr(n.parameters), repository, placements[n.name])
        for n in nodes
        if n.executable == "model_server_node" and n.name in placements
    }
    others = [n for n in nodes if n.executable != "robot_node"]
    io = {name: (read.io, read.instruction, read.config.policy) for name, read in robots.items()}
    more = (io, [(n.name, n.executable, n.parameters) for n in others], [n.params_file for n in nodes])
    return Body({name: read.config for name, read in robots.items()}, servers, more)


READ: dict[str, Any] = {}
"""By what it was read from: a node has hundreds of parameters, and few keys change any."""


def robot_of(key: str, node: NodeSpec) -> RobotSettings:
    key += node.params_file
    if key not in READ:
        own = yaml.safe_load(Path(node.params_file).read_text())["/**"]["ros__parameters"]
        READ[key] = settings({**own, **node.parameters}, node.name)
    return READ[key]  # type: ignore[no-any-return]


def server_of(key: str, repository: Path, placement: Placement) -> ServerConfig:
    from ast import literal_eval

    key += repr(placement)
    if key not in READ:
        given = {**literal_eval(key[: key.index("Placement(")]), "profiles_folder": str(repository / "config" / "profiles")}
        made = Node("server", parameter_overrides=[Parameter(name, value=value) for name, value in given.items()])
        declare(made, SPECS)
        READ[key] = server_params(made).server_config(placement, placement.max_sessions)
        made.destroy_node()
    return READ[key]  # type: ignore[no-any-return]


def virtual(factory: Factory, repository: Path) -> Body:
    """As a simulation has them when it begins."""
    profile, catalogue = timing(repository)
    world = World(seed=1, warm_up_s=0.0, conditions=SimulationConditions())
    made = Simulation(schedule_of(factory), factory, Timing(catalogue=catalogue, profile=profile), world)
    robots = {name: robot.brain.config for name, robot in made._robots.items()}
    servers = {name: host._config for name, host in made._hosts.items()}
    more = (
        {name: robot._goal.instruction for name, robot in made._robots.items()},
        {name: (host._round_trips_s, host._batches_in_flight) for name, host in made._hosts.items()},
        {name: host.placement for name, host in made._hosts.items()},
    )
    return Body(robots, servers, more)


# --- what follows from a key ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def robot_file(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped arm's, which leaves the control rate to the descriptor."""
    content = yaml.safe_load((repository / "config" / "robots" / "metaworld_arm.yaml").read_text())
    del content["/**"]["ros__parameters"]["control_rate_hz"]
    file = tmp_path_factory.mktemp("robots") / "arm.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


@pytest.fixture
def tree(robot_file: Path) -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load(BASE)
    tree["pick"]["robot"] = str(robot_file)
    tree["other"] = copy.deepcopy(tree["pick"])
    return tree


def changed(tree: dict[str, Any], key: str) -> dict[str, Any]:
    (*path, last), value = CHANGED[key]
    here = copy.deepcopy(tree)
    section: Any = here
    for part in path:
        section = section[part]
    section[last] = value
    return here


@pytest.mark.parametrize("key", CHANGED)
def test_a_key_changes_something_in_both_bodies(ros: None, repository: Path, tree: dict[str, Any], key: str) -> None:
    before, after = factory_of(tree, repository), factory_of(changed(tree, key), repository)
    told = planned(before, repository) != planned(after, repository)
    assert told or live(before, repository) != live(after, repository), "nothing that is live knows of it"
    in_virtual_time = told or repr(virtual(before, repository)) != repr(virtual(after, repository))
    assert in_virtual_time is (key not in ONLY_LIVE), ONLY_LIVE.get(key, "virtual time knows nothing of it")


DECIDED = {"synchronous", "horizon", "calls_per_action", "prompts", "execution_horizon", "control_rate_hz", "interpolation", "name"}
"""Of a robot, by the descriptor, in both bodies: an execution of as many steps lasts as long."""
OF_THE_SERVER = {"name", "batch_size", "max_sessions", "dispatch", "batching", "refetch_after_s", "profile_s"}


@pytest.mark.parametrize("key", ["", *(key for key in CHANGED if key not in ("task.robot", "server_cluster.gpu_type"))])
def test_the_bodies_agree_key_by_key(ros: None, repository: Path, tree: dict[str, Any], key: str) -> None:
    factory = factory_of(changed(tree, key) if key else tree, repository)
    here, there = live(factory, repository), virtual(factory, repository)
    assert here.robots.keys() == there.robots.keys() and here.servers.keys() == there.servers.keys()
    for name, robot in here.robots.items():
        other = there.robots[name]
        for field in DECIDED - {"execution_horizon", "control_rate_hz", "interpolation", "horizon"}:
            assert getattr(robot, field) == getattr(other, field), field
        period_s, other_s = (r.execution_horizon / r.step_rate_hz for r in (robot, other))
        assert period_s == pytest.approx(other_s), "of what is executed of a chunk"
        assert dataclasses.replace(robot.horizon, steps=0) == dataclasses.replace(other.horizon, steps=0)
        assert (robot.horizon.steps, other.horizon.steps) == (robot.execution_horizon, other.execution_horizon)
    assert key == "task.components.engine" or all(server.profile_s for server in here.servers.values())
    for name, server in here.servers.items():
        for field in OF_THE_SERVER - ({"profile_s"} if key == "task.components.engine" else set()):  # of a model made up here
            assert getattr(server, field) == getattr(there.servers[name], field), field


class Seer(FakeEngine):
    """Remembers how large the images are that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[int, ...]] = set()

    def infer(self, requests: Any) -> Any:
        self.seen |= {image.shape for request in requests for image in request.images.values()}
        return super().infer(requests)


def test_capacity_is_measured_with_images_of_the_declared_size(ros: None, repository: Path, tree: dict[str, Any]) -> None:
    del tree["pick"]["world"]
    tree["pick"]["image_size_px"] = [320, 240]
    factory = factory_of(tree, repository)
    (node, *_) = [n for n in node_list(factory, repository / "config") if n.executable == "model_server_node"]
    made = Node("server", parameter_overrides=[Parameter(name, value=value) for name, value in node.parameters.items()])
    declare(made, SPECS)
    (placement, *_) = schedule_of(factory).placements
    engine = Seer()
    served = _ready(engine, server_params(made), dataclasses.replace(placement, max_sessions=0), ())
    made.destroy_node()
    assert engine.seen == {(240, 320, 3)} and served.config.max_sessions > 1 and served.config.profile_s


@pytest.mark.parametrize("name", ["factory_quickstart", "factory_foreign", "factory_full", "factory_emulated"])
def test_a_draft_reads_what_a_node_reads(ros: None, repository: Path, name: str) -> None:
    """Before anything starts, a factory is asked by drafts (`operate/drafts.py`)."""
    for node in node_list(load_factory(repository / "config" / f"{name}.yaml"), repository / "config"):
        given = merged_parameters(node)
        if node.executable == "robot_node":
            assert robot_settings(draft(given), node.name) == settings(flat(given), node.name)


# --- the robot's own file -------------------------------------------------------------------------------------------------

CONTRADICTIONS = {
    "synchronous: true": ("execution.mode", "True"),
    "execution_horizon: 9": ("pipeline.action_period_ms", "9"),
    "horizon_policy: curvature": ("execution.horizon.policy", "'curvature'"),
    "instruction: stay": ("components.system1.prompt", "'stay'"),
    "control_rate_hz: 30.0": ("world.control_rate_hz", "30.0"),
    "max_task_retries: 9": ("task_retry.max_task_retries", "9"),
    "component_fallbacks: [system1=use_last_plan]": ("components.<component>.fallback", "use_last_plan"),
    "max_image_size_px: 640": ("image_size_px", "640"),
}


@pytest.mark.parametrize("line", CONTRADICTIONS)
def test_a_robot_file_that_contradicts_the_descriptor_is_refused_naming_both(
    repository: Path, tmp_path: Path, tree: dict[str, Any], line: str
) -> None:
    (tmp_path / "mine.yaml").write_text(f"/**:\n  ros__parameters:\n    cameras: [front]\n    {line}\n")
    tree["pick"]["robot"] = "mine.yaml"
    factory = parse_factory(yaml.safe_dump(tree), str(tmp_path / "factory.yaml"))
    with pytest.raises(ConfigurationError) as refused:
        node_list(factory, repository / "config")
    key, value = CONTRADICTIONS[line]
    said = str(refused.value)
    assert "mine.yaml:4" in said and str(tmp_path / "factory.yaml") in said and f"pick.{key}" in said and value in said


def test_a_robot_file_may_say_the_same(repository: Path, tmp_path: Path, tree: dict[str, Any]) -> None:
    text = "/**:\n  ros__parameters:\n    synchronous: false\n    execution_horizon: 4\n    control_rate_hz: 20\n"
    (tmp_path / "mine.yaml").write_text(text + "    calls_per_action: [grasp=0.5, system2=0.1]\n")
    tree["pick"]["robot"] = "mine.yaml"
    assert node_list(parse_factory(yaml.safe_dump(tree), str(tmp_path / "factory.yaml")), repository / "config")


def test_a_robot_cannot_execute_part_of_a_step(repository: Path, tree: dict[str, Any]) -> None:
    tree["pick"]["execution"] = {"mode": "async"}
    tree["pick"]["pipeline"]["action_period_ms"] = 220
    with pytest.raises(
        ConfigurationError, match=r"pick\.pipeline\.action_period_ms.*220 ms are 4\.4 control steps.*give 200 or 250"
    ):
        node_list(factory_of(tree, repository), repository / "config")
