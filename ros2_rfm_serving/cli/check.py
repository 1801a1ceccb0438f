"""`rfm check`: a descriptor, validated, with what it declares and whether its models are known."""

from __future__ import annotations

import difflib
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ros2_rfm_serving.engines.registry import answers_whole
from ros2_rfm_serving.factory import ComponentEntry, Factory, TaskEntry
from ros2_rfm_serving.factory.cores import cores_of, cores_text
from ros2_rfm_serving.factory.nodes import NodeSpec, node_list
from ros2_rfm_serving.factory.reading_cores import shared_cores
from ros2_rfm_serving.factory.settings import settings_of
from ros2_rfm_serving.monitoring.plain import counted
from ros2_rfm_serving.operate.inputs import CatalogueFile, FactoryFile, Inputs, Profiles, console, load_inputs
from ros2_rfm_serving.operate.known_contracts import contract_problems, contracts_of
from ros2_rfm_serving.operate.progress import spinner
from ros2_rfm_serving.operate.rates import check_rates
from ros2_rfm_serving.scheduler.prediction.curves import Curves
from ros2_rfm_serving.scheduler.slo import slo_of
from ros2_rfm_serving.server.horizon import check as check_horizon
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.types import MONITOR, SAFETY, SYSTEM1, SYSTEM2, ModelContract

if TYPE_CHECKING:
    from ros2_rfm_serving.operate.drafts import RobotDraft

ROLES = (SYSTEM1, SYSTEM2, SAFETY, MONITOR)
WHOLE = "say another `batching` than continuous there"
REMEASURE = "it is planned in fixed batches; `rfm profile --batching continuous` measures it"


def check(
    file: FactoryFile,
    profiles: Profiles = None,
    catalogue: CatalogueFile = None,
    load: Annotated[
        bool, typer.Option("--load", help="Load models whose files do not say what they expect of robots, as a server would")
    ] = False,
    live: Annotated[bool, typer.Option("--live", help="Compare the robots with the ROS graph, too: drivers have to run")] = False,
    seconds: Annotated[float, typer.Option(min=0.5, max=600, help="With --live: for how long the graph is looked at")] = 5.0,
    domain: Annotated[int, typer.Option(help="With --live: ROS domain; -1: ROS_DOMAIN_ID or 0")] = -1,
    namespace: Annotated[str, typer.Option(help="With --live: of the whole factory; default: the descriptor's")] = "",
) -> None:
    """Validates a factory descriptor and the files of its robots with the code that the nodes run, and says what it declares.

    What it calls valid starts. Models that no server could load, or that nobody has measured, are named: `rfm up` cannot plan them.

    With --live: who publishes and subscribes to each robot's topics, with which types, rates, joint names and image formats.

    Examples:  rfm check my_factory.yaml   |   rfm check my_factory.yaml --live --seconds 3

    Exit code: 0; 1 when it does not start yet, or the graph differs; 2 for an error in a file.
    """
    inputs = load_inputs(file, profiles, catalogue)
    nodes = node_list(inputs.factory, shipped("config"), work={})
    check_rates(inputs.factory, inputs.catalogue)
    contracts = _contracts(inputs, load=load)
    warnings = [
        f"warning: {text}"
        for text in (*_asked(nodes, inputs, contracts), *horizons(inputs.factory), *roles(inputs.factory), *cores(inputs.factory))
    ]
    if unknown := [model for model, contract in contracts.items() if contract is None]:
        warnings.append(f"  only when it is loaded, {', '.join(unknown)} says what it expects of robots: `--load` compares that")
    missing = list(blockers(inputs))
    for line in (*report(inputs, missing), *warnings):
        console.print(line, style="yellow" if line.lstrip().startswith("warning:") else None, highlight=False, markup=False)
    differs = live and _differs(inputs.factory, nodes, namespace or inputs.factory.discovery.namespace, domain, seconds)
    if missing or differs:
        raise typer.Exit(1)


def _differs(factory: Factory, nodes: Sequence[NodeSpec], namespace: str, domain: int, seconds: float) -> bool:
    """Print what the live graph has differently from what the robots' files say, and return whether that is an error."""
    from ros2_rfm_serving.operate.live_check import live_findings
    from ros2_rfm_serving.operate.running import stop_signals

    stop, terminal = threading.Event(), Console(stderr=True)
    nodes = node_list(factory, shipped("config"), fleet_namespace=namespace) if namespace else nodes
    errors = 0
    with stop_signals(stop), terminal.status("looking at the graph") as status:
        looks = live_findings(
            factory, nodes, namespace=namespace, domain=domain, seconds=seconds, stop=stop, progress=status.update
        )
        for robot, findings in looks:
            if findings is None:
                console.print(f"live: {robot}: is simulated, and does not run: nothing to compare", highlight=False, markup=False)
                continue
            for finding in findings:
                errors += finding.is_error
                style = "red" if finding.is_error else "yellow"
                console.print(f"{finding.severity}: {robot}: {finding}", style=style, highlight=False, markup=False)
            if not findings:
                console.print(f"live: {robot}: the graph has what its file says", highlight=False, markup=False)
    return errors > 0


def _asked(nodes: Sequence[NodeSpec], inputs: Inputs, contracts: Mapping[str, ModelContract | None]) -> list[str]:
    """Return the warnings of the nodes.
    Raises: `ConfigurationError` for a setting that a node, or the server of a robot's model, would refuse."""
    try:
        from ros2_rfm_serving.operate.drafts import check_nodes, robot_drafts
    except ImportError:  # planning needs no ROS
        return ["ROS is not installed here: no node was asked whether it takes its parameters"]
    warnings = check_nodes(nodes, inputs.factory.file)
    robots = [robot for robot in robot_drafts(nodes, inputs.factory.file) if has_robots(inputs.factory, robot.settings.task)]
    for problem in contract_problems(robots, inputs.factory, contracts):
        raise problem
    return [*warnings, *_too_old(robots, inputs.factory)]


def _too_old(robots: Sequence[RobotDraft], factory: Factory) -> Iterator[str]:
    """Yield the robots for which the last actions of each cycle are too old, however fast the servers are."""
    for robot in robots:
        task, age_s = robot.settings.task, robot.settings.config.max_action_age_s
        cycle_s = factory.tasks[task].cycle_period_s
        if age_s < cycle_s:
            yield (
                f"{robot.node.params_file}: max_action_age_s: {age_s:g} s is shorter than the cycle of {cycle_s:g} s"
                f" (`{task}.pipeline.action_period_ms`): the last actions of each cycle are never executed; raise it"
            )


def _contracts(inputs: Inputs, *, load: bool) -> dict[str, ModelContract | None]:
    """Return the contracts of the models. load: load the models whose contract is in no file. Raises: `RfmError`."""
    contracts = contracts_of(inputs.factory, inputs.catalogue)
    if not load:
        return contracts
    from ros2_rfm_serving.operate.model_contracts import loaded_contract

    for model in [model for model, contract in contracts.items() if contract is None]:
        with spinner(f"loading {model}"):
            gpu_type = inputs.factory.server_cluster[0].gpu_type
            contracts[model] = loaded_contract(model, inputs.catalogue[model], inputs.profile, gpu_type)
    return contracts


def has_robots(factory: Factory, task: str) -> bool:
    """Return whether the descriptor declares the robots of a task, by a file or a simulator; others are planned, but not run."""
    return factory.tasks[task].world is not None or "robot" in factory.tasks[task].model_fields_set


def roles(factory: Factory) -> Iterator[str]:
    """Yield components with a name close to one that robots act upon: no robot acts upon answers under the wrong name."""
    for entry in factory.robot_fleet:
        for component in factory.tasks[entry.task].components:
            if component not in ROLES and (near := difflib.get_close_matches(component, ROLES, 1)):
                yield f"{entry.task}.components.{component}: no robot acts upon its answers; did you mean `{near[0]}`?"


def blockers(inputs: Inputs) -> Iterator[str]:
    """Yield what prevents planning of a valid descriptor, and so its start."""
    gpu_types = {group.gpu_type for group in inputs.factory.server_cluster}
    for model in models_of(inputs.factory):
        if model not in inputs.catalogue.models:
            yield f"{model!r} is not in the catalogue"
        elif not any(model in inputs.profile.models_on(gpu_type) for gpu_type in gpu_types):
            yield f"{model!r} was never measured on {' or '.join(sorted(gpu_types))}"
        elif not any(inputs.catalogue.fits(model, gpu_type) for gpu_type in gpu_types):
            yield f"{model!r} does not fit into the memory of {' or '.join(sorted(gpu_types))}"


def horizons(factory: Factory) -> Iterator[str]:
    """Yield problems of horizon policies.
    They may be installed on the servers alone; a server without the requested policy leaves the robot's own horizon as it is."""
    for entry in factory.robot_fleet:
        if problem := check_horizon(settings_of(factory).robots[entry.task].horizon):
            yield f"{entry.task}.execution.horizon.policy: {problem}"


def cores(factory: Factory) -> Iterator[str]:
    """Yield servers that share processor cores, and those whose cores do not exist on this machine, where they run on it."""
    yield from shared_cores(factory)
    if factory.hosts or not sys.platform.startswith("linux"):
        return
    here = os.sched_getaffinity(0)
    for server, text in factory.cores.items():
        if missing := cores_of(text) - here:
            yield f"{server} does not start here: there is no core {cores_text(missing)} for it, but {cores_text(here)}"


def report(inputs: Inputs, missing: Sequence[str] = ()) -> Iterator[str]:
    """Yield the content of the descriptor. missing: what prevents its start."""
    factory = inputs.factory
    cluster = ", ".join(map(str, factory.server_cluster))
    verdict = f"without an error, but it does not start yet: {'; '.join(missing)}" if missing else "valid"
    yield f"{factory.file}: {verdict}. {counted(len(factory.robots), 'robot')}; servers: {cluster}"
    if factory.standby.num_servers:
        yield f"  standby: {factory.standby.num_servers} of the servers, out of the normal routes"
    for entry in factory.robot_fleet:
        yield from _task(inputs, entry.task, entry.num_robots)
    unknown = [entry.task for entry in factory.robot_fleet if not has_robots(factory, entry.task)]
    if unknown:
        yield f"  to be run, {', '.join(unknown)} needs `robot: FILE`, or a `world` to simulate: nothing says what its robots are"
    unused = sorted(set(factory.tasks) - {entry.task for entry in factory.robot_fleet})
    if unused:
        yield f"warning: no robot has the task {', '.join(unused)}"
    yield "  models:"
    yield from _models(inputs)


def _task(inputs: Inputs, name: str, count: int) -> Iterator[str]:
    task = inputs.factory.tasks[name]
    policy = task.execution.horizon.policy
    horizon = f", horizon by {policy}" if policy != "static" else ""
    pipelined = f", {task.pipelining.depth} requests in flight" if task.pipelining else ""
    parts = [f"cycle {1e3 * task.cycle_period_s:g} ms", f"{task.execution.mode.value} execution{horizon}{pipelined}"]
    if task.value != 1:
        parts.append(f"value {task.value:g}")
    if floor_hz := task.floor_hz(count):
        parts.append(f"at least {floor_hz:g} actions/s per robot")
    yield f"  {count} x {name}: {', '.join(parts)}"
    for component, spec in task.components.items():
        yield f"    {component} ({spec.model}): {_rate(component, spec, task)}, {_slo(spec, task)}{_left(inputs, name, component)}"


def _rate(component: str, spec: ComponentEntry, task: TaskEntry) -> str:
    return f"{spec.freq_hz:g} Hz" if spec.freq_hz else f"{task.calls_per_action(component):g} per action"


def _slo(spec: ComponentEntry, task: TaskEntry) -> str:
    return f"p{spec.percentile or task.percentile:g} within {spec.slo_ms:g} ms" if spec.slo_ms else "no SLO"


def _left(inputs: Inputs, name: str, component: str) -> str:
    """Return the part of an SLO that remains for a server, after the network, to the nearest host, and the margin."""
    factory, task = inputs.factory.without_away(), inputs.factory.tasks[name]
    spec, network, margin = task.components[component], factory.network_of(name), factory.planning.slo_margin
    if not spec.slo_ms:
        return ""
    gpu_types = set(factory.gpu_types.values())
    curves = Curves(inputs.profile.batched(factory.continuous), [spec.model], gpu_types, [(spec.model, g) for g in gpu_types])
    slo, percentile = slo_of(factory, name, component), spec.percentile or task.percentile
    able = [config for config in curves.of(spec.model) if curves.capacity_hz(config, slo)]
    server_ms = 1e3 * min((curves.share_s(config, slo) for config in able), default=slo.kept_s - slo.far_s)
    tail_ms = 1e3 * slo.far_s
    if server_ms <= 0:
        return f"\nwarning: the network of {name!r} takes {tail_ms:.0f} ms of the SLO of {spec.slo_ms:g} ms: no server can keep it"
    if configs := [] if able else curves.of(spec.model):
        fastest_ms = 1e3 * min(curves.typical_s(config, percentile) for config in configs)
        fastest = f"p{percentile:g} of the fastest is {fastest_ms:.0f} ms; raise `slo_ms`, or choose a faster model"
        return f"\nwarning: no server keeps the SLO of {spec.slo_ms:g} ms of {name!r}: {fastest}"
    if not (network.mean_s or margin):
        return ""
    there = " to the nearest host" if factory.away_s else ""
    round_trip = f"p{percentile:g} of a round trip{there} is {tail_ms:.0f} ms"
    parts = [round_trip] * bool(network.mean_s) + [f"margin {margin:.0%}"] * bool(margin)
    return f"; {server_ms:.0f} ms of it for the server ({', '.join(parts)})"


def models_of(factory: Factory) -> list[str]:
    """Return the models of the tasks that have robots, in the order of the descriptor."""
    tasks = [factory.tasks[entry.task] for entry in factory.robot_fleet]
    return list(dict.fromkeys(component.model for task in tasks for component in task.components.values()))


def _models(inputs: Inputs) -> Iterator[str]:
    for model in models_of(inputs.factory):
        known = model in inputs.catalogue.models
        for gpu_type in dict.fromkeys(group.gpu_type for group in inputs.factory.server_cluster):
            profiled = model in inputs.profile.models_on(gpu_type)
            parts = [_sizes(model, gpu_type, inputs) if profiled else "no latency profile", _memory(model, gpu_type, inputs)]
            yield f"    {model} on {gpu_type}: {'in the catalogue' if known else 'not in the catalogue'}, {', '.join(parts)}"
            if not profiled:
                yield f"warning: {model!r} was never measured on {gpu_type}; `rfm plan` needs `rfm profile` there"
            if profiled and unstepped(model, gpu_type, inputs):
                yield f"warning: {model!r} was never measured on {gpu_type} with `batching: continuous`; {REMEASURE}"
            if known and gpu_type in inputs.factory.continuous and answers_whole(inputs.catalogue[model], gpu_type):
                yield f"warning: {model!r} answers whole batches: none of {gpu_type} loads it; {WHOLE}"
            if not inputs.catalogue.fits(model, gpu_type):
                yield f"warning: {model!r} does not fit into the memory of {gpu_type}"
        if not known:
            yield f"warning: {model!r} is not in the catalogue; no server can load it. Add it to models.yaml"


def unstepped(model: str, gpu_type: str, inputs: Inputs) -> bool:
    """Return whether the descriptor asks for continuous batching and no profile has it."""
    kinds = inputs.profile.batch_sizes(model, gpu_type)
    return gpu_type in inputs.factory.continuous and all(batching == "fixed" for batching, _ in kinds)


def _sizes(model: str, gpu_type: str, inputs: Inputs) -> str:
    kinds = inputs.profile.batch_sizes(model, gpu_type)
    sizes = [str(size) for batching, size in kinds if batching == "fixed"]
    batches = [f"batch {', '.join(sizes)}"] if sizes else []
    both = 0 < len(sizes) < len(kinds)
    planned = f"; planned {'continuous' if gpu_type in inputs.factory.continuous else 'in fixed batches'}" if both else ""
    return "profiled (" + "; ".join(batches + ["continuous"] * (len(sizes) < len(kinds))) + planned + ")"


def _memory(model: str, gpu_type: str, inputs: Inputs) -> str:
    need, gpu = inputs.catalogue.footprint(model, gpu_type), inputs.catalogue.gpu_types.get(gpu_type)
    if need is None:
        return "memory unknown"
    return f"{need.memory_gb:g} of {gpu.memory_gb:g} GB" if gpu else f"{need.memory_gb:g} GB"
