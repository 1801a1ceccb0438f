"""`rfm connect`: a robot's file and a factory, from a live ROS graph, and the proof that they work."""

from __future__ import annotations

import math
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.plain import counted, plain
from ros2_rfm_serving.operate.progress import spinner
from ros2_rfm_serving.operate.running import console, prepare_environment, ros_domain, stop_signals
from ros2_rfm_serving.shipped import shipped

if TYPE_CHECKING:
    from ros2_rfm_serving.factory.live_graph.compare import GraphFinding
    from ros2_rfm_serving.factory.live_graph.presets import Preset
    from ros2_rfm_serving.factory.live_graph.propose import Answers, UndecidedError
    from ros2_rfm_serving.factory.live_graph.snapshot import GraphSnapshot
    from ros2_rfm_serving.operate.connecting import Written
    from ros2_rfm_serving.operate.proving import Stage, StageReport
    from ros2_rfm_serving.types import ModelContract

SERVER_WAIT_S = 10.0
STOPPED = "stopped; no file was written"

Robot = Annotated[str, typer.Option(metavar="NAME", help="Task and file are named after it; its first robot is NAME_1")]
PresetName = Annotated[str, typer.Option(metavar="NAME", help="ur, franka, kinova_gen3, so101, mobile_base; `list` shows them")]
Model = Annotated[
    str, typer.Option(metavar="NAME", help="A model of the catalogue; without one a stand-in moves the robot a little")
]
Bundle = Annotated[Path | None, typer.Option(metavar="DIR", help="Read the contract from this bundle")]
Server = Annotated[str, typer.Option(metavar="NAME", help="Read the contract from this running server")]
Profiles = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of latency profiles and models.yaml; default: shipped")]
Gpu = Annotated[str, typer.Option(metavar="TYPE", help="Type of GPU; default: where the model was profiled")]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the files")]
Yes = Annotated[bool, typer.Option("--yes", help="Ask nothing: what is ambiguous is an error; the proof goes on by itself")]
Check = Annotated[Path | None, typer.Option(metavar="FILE", help="Compare this robot's file with the graph, and write nothing")]
Prove = Annotated[Path | None, typer.Option(metavar="FACTORY.yaml", help="Run the proof of this factory, and write nothing")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="End the proof after the dry run, which commands nothing")]
Speed = Annotated[float, typer.Option(min=0.01, max=1.0, help="Second step of the proof: share of the declared speed")]
Seconds = Annotated[float, typer.Option(min=1.0, max=600.0, help="Look at the graph for so long; each step of the proof, too")]
Command = Annotated[str, typer.Option(metavar="TOPIC", help="Where commands go")]
CommandType = Annotated[str, typer.Option(metavar="TYPE", help="What the numbers of an array are: position, velocity")]
Joints = Annotated[str, typer.Option(metavar="J1,J2,...", help="Joint of each action, in the model's order")]
JointTopic = Annotated[str, typer.Option(metavar="TOPIC", help="Joint states")]
State = Annotated[str, typer.Option(metavar="PARTS", help="joint_states[:position+velocity], odometry; with commas")]
Odometry = Annotated[str, typer.Option(metavar="TOPIC", help="Odometry of a base")]
Camera = Annotated[list[str] | None, typer.Option(metavar="NAME=TOPIC", help="Topic of a camera of the model; several times")]
TwistAxes = Annotated[str, typer.Option(metavar="A=AXIS,...", help="Axis of each action, such as v=linear.x")]
Rate = Annotated[float, typer.Option(min=0.0, help="Commands per second; 0: of the demonstrations, or 20 Hz")]
MaxVelocity = Annotated[str, typer.Option(metavar="V[,V...]", help="Largest velocity of each action; default: preset, or cautious")]
Prompt = Annotated[str, typer.Option(help="Instruction of the task")]
Slo = Annotated[float, typer.Option("--slo-ms", min=1.0, help="From request to answer, ms")]
Domain = Annotated[int, typer.Option(help="ROS domain; -1: ROS_DOMAIN_ID or 0")]
Namespace = Annotated[str, typer.Option(help="Namespace of the whole factory")]


def connect(
    robot: Robot = "robot",
    preset: PresetName = "",
    model: Model = "",
    bundle: Bundle = None,
    server: Server = "",
    profiles: Profiles = None,
    gpu: Gpu = "",
    out: Out = Path("connected"),
    yes: Yes = False,
    check: Check = None,
    prove: Prove = None,
    dry_run: DryRun = False,
    speed: Speed = 0.2,
    seconds: Seconds = 5.0,
    command: Command = "",
    command_type: CommandType = "",
    joints: Joints = "",
    joint_topic: JointTopic = "",
    state: State = "",
    odometry: Odometry = "",
    camera: Camera = None,
    twist_axes: TwistAxes = "",
    rate: Rate = 0.0,
    max_velocity: MaxVelocity = "",
    prompt: Prompt = "move",
    slo_ms: Slo = 1000.0,
    domain: Domain = -1,
    namespace: Namespace = "",
) -> None:
    """Connects a robot that runs: looks at its ROS graph, writes its file and a factory, and proves them step by step.

    Start the robot's drivers and controllers first. What the graph does not say is asked on a terminal; an option answers each
    question. `--check` compares a file with the graph. `--prove` runs a dry run, which commands nothing, then a reduced speed, then
    the robot as declared, and asks before each.

    Examples:  rfm connect --robot arm --preset ur --out arm   |   rfm connect --check arm/arm.yaml   |
    rfm connect --prove arm/factory.yaml --profiles arm/profiles --dry-run

    Exit code: 0; 1 when the comparison or the proof found a problem; 2 when an option or a file has to change; 130 after Ctrl-C.
    """
    if preset == "list":
        _list_presets()
        return
    if dry_run and prove is None:
        raise ConfigurationError("is a part of the proof", key="--dry-run", fix="name the factory: --prove FACTORY.yaml --dry-run")
    if prove is not None and check is not None:
        raise ConfigurationError("cannot be done together with --prove", key="--check", fix="give one of them")
    prepare_environment(domain)
    stop = threading.Event()
    with stop_signals(stop):
        if prove is not None:
            _prove(prove, profiles, namespace, seconds, speed, dry_run, yes, stop, domain)
            return
        if check is not None:
            _check(check, seconds, namespace, stop)
            return
        from ros2_rfm_serving.factory.live_graph.propose import Answers

        answers = Answers(
            robot=_name(robot),
            command=command,
            command_type=command_type,
            joints=_parts(joints),
            joint_topic=joint_topic,
            state=_parts(state),
            odometry=odometry,
            cameras=_cameras(camera or []),
            twist_axes=_parts(twist_axes),
            rate_hz=rate,
            max_velocity=_numbers(max_velocity),
        )
        contract, gpu_type = _contract(model, bundle, server, profiles, gpu, namespace, stop)
        graph = (f" --domain {domain}" if domain >= 0 else "") + (f" --namespace {namespace}" if namespace else "")
        _write(answers, contract, preset, out, gpu_type, profiles, (prompt, slo_ms), seconds, yes, namespace, stop, graph)


# --- what is given ---


def _name(robot: str) -> str:
    from ros2_rfm_serving.factory.graph_names import NAME
    from ros2_rfm_serving.factory.live_graph.files import READ_OTHERWISE
    from ros2_rfm_serving.factory.reading import SECTIONS

    if not NAME.fullmatch(robot):
        raise ConfigurationError(
            f"{robot!r} is no name", key="--robot", fix="write letters, digits and underscores, a letter first"
        )
    if robot in (*SECTIONS, "factory") or robot.lower() in READ_OTHERWISE:
        problem = f"{robot!r} means something else in the files that are written"
        raise ConfigurationError(problem, key="--robot", fix=f"choose another name, such as {robot}_arm")
    return robot


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _numbers(text: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in _parts(text))
        if not all(math.isfinite(number) and number > 0.0 for number in numbers):
            raise ValueError("a velocity is above zero, and finite")
        return numbers
    except ValueError as error:
        raise ConfigurationError(
            f"{text!r}: {error}", key="--max-velocity", fix="write numbers with commas, such as 0.5,0.5"
        ) from None


def _cameras(given: list[str]) -> dict[str, str]:
    found = {}
    for entry in given:
        name, equals, topic = entry.partition("=")
        if not equals:
            raise ConfigurationError(f"{entry!r} is no camera", key="--camera", fix="write name=/topic")
        found[name] = topic
    return found


def _list_presets() -> None:
    from ros2_rfm_serving.factory.live_graph.presets import load_preset, preset_names

    folder = shipped("config", "robots", "presets")
    for name in preset_names(folder):
        preset = load_preset(folder, name)
        console.print(f"{name}: {preset.title}", highlight=False, markup=False)
        for source in sorted(set(map(str, preset.sources.values()))):
            console.print(f"    {source}", highlight=False, markup=False)


def _contract(
    model: str, bundle: Path | None, server: str, profiles: Path | None, gpu: str, namespace: str, stop: threading.Event
) -> tuple[ModelContract | None, str]:
    """Return the contract, None without a model, and the type of GPU. Raises: `RfmError`."""
    from ros2_rfm_serving.factory import Catalogue
    from ros2_rfm_serving.operate.model_contracts import bundle_contract, catalogue_contract, profiled_gpu, server_contract
    from ros2_rfm_serving.profiles import load_profiles

    if sum(map(bool, (model, bundle, server))) > 1:
        raise ConfigurationError("several sources of the contract", key="--model", fix="give one of --model, --bundle, --server")
    folder = profiles or shipped("config", "profiles")
    if server:
        from ros2_rfm_serving.ros.wire.qos import Names

        contract = server_contract(server, Names(namespace), SERVER_WAIT_S, stop)
    elif bundle:
        with spinner(f"loading {bundle} for its contract"):
            contract = bundle_contract(bundle, Catalogue.load(folder / "models.yaml"))
    elif model:
        gpu = gpu or profiled_gpu(model, folder)
        with spinner(f"loading {model} for its contract"):
            catalogue = Catalogue.load(folder / "models.yaml")
            contract = catalogue_contract(model, catalogue, load_profiles(folder), gpu)
    else:
        return None, ""
    gpu = gpu or profiled_gpu(contract.model, folder)
    if not gpu:
        problem = f"{contract.model!r} has no latency profile in {folder}"
        raise ConfigurationError(problem, key="--gpu", fix="measure it with `rfm profile`, or give --gpu and --profiles")
    return contract, gpu


# --- the graph, and the files ---


def _snapshot(seconds: float, stop: threading.Event) -> GraphSnapshot:
    """Return the graph. Raises: `ConfigurationError` when it is empty; `typer.Exit` when the user has ended it."""
    from ros2_rfm_serving.operate.live_graph import take_snapshot

    with _progress() as progress:
        snapshot = take_snapshot(seconds, stop, progress)
    if stop.is_set():
        console.print(STOPPED)
        raise typer.Exit(130)
    if not snapshot.topics:
        fix = "start the robot's drivers, or give their --domain"
        raise ConfigurationError(f"no topic is there in ROS domain {ros_domain()}", key="--domain", fix=fix)
    return snapshot


@contextmanager
def _progress() -> Iterator[Callable[[str], object]]:
    with console.status("") as status:
        yield lambda text: status.update(plain(text))


def _write(
    answers: Answers,
    contract: ModelContract | None,
    preset_name: str,
    out: Path,
    gpu_type: str,
    profiles: Path | None,
    task: tuple[str, float],
    seconds: float,
    yes: bool,
    namespace: str,
    stop: threading.Event,
    graph: str,
) -> None:
    from ros2_rfm_serving.operate.connecting import Target, compare_file, decided_proposal, free_files, write_files

    preset = _preset(preset_name)
    free_files(answers.robot, out, has_model=contract is not None)  # before the user waits
    snapshot = _snapshot(seconds, stop)
    console.print(
        plain(f"ROS domain {snapshot.domain}: {counted(len(snapshot.topics), 'topic')}, {counted(len(snapshot.nodes), 'node')}")
    )
    proposal = decided_proposal(snapshot, contract, preset, answers, lambda undecided: _ask(undecided, yes))
    seen = f"ROS domain {snapshot.domain}, looked at for {seconds:g} s"
    seen += f", preset {preset.name} ({preset.title})" if preset else ""
    target = Target(
        folder=out,
        model=contract.model if contract else "",
        gpu_type=gpu_type,
        slo_ms=task[1],
        prompt=task[0],
        profiles=profiles,
    )
    written = write_files(proposal, contract, target, seen)
    for line in proposal.lines:
        console.print(plain(f"  {line.key}: {_short(line.value)}  ({line.comment})"), soft_wrap=True)
    findings = compare_file(written.robot, f"{answers.robot}_1", snapshot, namespace)
    _report(findings)
    _next_steps(written, graph)
    if any(finding.is_error for finding in findings):
        raise typer.Exit(1)


def _preset(name: str) -> Preset | None:
    from ros2_rfm_serving.factory.live_graph.presets import load_preset

    return load_preset(shipped("config", "robots", "presets"), name) if name else None


def _ask(undecided: UndecidedError, yes: bool) -> str:
    """Return the user's answer. Raises: the question itself, which names the option, where there is no user to ask."""
    if yes or not sys.stdin.isatty():
        raise undecided
    console.print(plain(undecided.problem), soft_wrap=True)
    answer = ""
    with _interruptible():
        while not answer:
            answer = str(typer.prompt(f"--{undecided.option}", default=undecided.example)).strip()
    return answer


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end the command at once (exit code 130) while the user is asked; otherwise it stops running processes in order."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except typer.Abort:
        console.print("\nstopped")
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGINT, before)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _next_steps(written: Written, graph: str) -> None:
    """Print the next commands. graph: options that name the robot's graph, with a leading space."""
    factory = shlex.quote(str(written.factory))
    profiles = f" --profiles {shlex.quote(str(written.profiles))}" if written.profiles else ""
    console.print(plain(f"wrote {written.robot} and {written.factory}. Next, with the robot's drivers running:"), soft_wrap=True)
    steps = (
        (f"rfm check {factory}{profiles}", "whether every node takes it"),
        (f"rfm connect --prove {factory}{profiles}{graph} --dry-run", "sensors and policy, and nothing is commanded"),
        (f"rfm connect --prove {factory}{profiles}{graph}", "the same, then slowly, then as declared; it asks before each"),
        (f"rfm up {factory}{profiles}{graph}", "in earnest"),
    )
    for text, why in steps:
        console.print(plain(f"    {text}    # {why}"), soft_wrap=True)


# --- comparison and proof ---


def _check(file: Path, seconds: float, namespace: str, stop: threading.Event) -> None:
    from ros2_rfm_serving.operate.connecting import compare_file, settings_of_file

    name = settings_of_file(file, f"{file.stem}_1").config.name  # an unreadable file is reported before the user waits
    findings = compare_file(file, name, _snapshot(seconds, stop), namespace)
    if not findings:
        console.print(plain(f"{file} fits the graph in ROS domain {ros_domain()}"), soft_wrap=True)
    _report(findings)
    if any(finding.is_error for finding in findings):
        raise typer.Exit(1)


def _report(findings: list[GraphFinding]) -> None:
    for finding in findings:
        style = "red" if finding.is_error else "yellow"
        console.print(plain(f"{finding.severity}: {finding}"), style=style, soft_wrap=True)


def _prove(
    file: Path,
    profiles: Path | None,
    namespace: str,
    seconds: float,
    speed: float,
    dry_run: bool,
    yes: bool,
    stop: threading.Event,
    domain: int,
) -> None:
    from ros2_rfm_serving.factory import load_factory
    from ros2_rfm_serving.operate.proving import proving, stages
    from ros2_rfm_serving.operate.running import Options, new_logs

    factory = load_factory(file)
    own = namespace or factory.discovery.namespace
    options = Options(domain=domain, namespace=own, logs=new_logs(), work={}, profiles=profiles)
    console.print(plain(f"logs in {options.logs}"))
    with proving(factory, options, stop) as proof:
        for stage in stages(speed)[: 1 if dry_run else None]:
            if not _goes_on(stage, yes):
                return
            with _progress() as progress:
                reports = proof.run(stage, seconds, stop, progress)
            if stop.is_set():
                console.print("stopped")
                raise typer.Exit(130)
            problems = [problem for report in reports for problem in _show(stage, report)]
            if problems:
                raise typer.Exit(1)


def _goes_on(stage: Stage, yes: bool) -> bool:
    """Return whether the user wants this step; a dry run needs no consent.
    Raises: `ConfigurationError` where there is no user to ask."""
    if stage.is_dry or yes:
        return True
    if not sys.stdin.isatty():
        fix = "give --yes to let the robot move, or --dry-run"
        raise ConfigurationError(f"the next step ({stage.title}) moves the robot, and nobody can be asked", key="--yes", fix=fix)
    with _interruptible():
        return typer.confirm(f"Next: {stage.title}. The robot will move. Is its workspace clear, and the emergency stop at hand?")


def _show(stage: Stage, report: StageReport) -> tuple[str, ...]:
    verdict = "FAILED" if report.problems else "passed"
    console.print(plain(f"{report.robot}, {stage.title}: {verdict}"), style="red" if report.problems else "green")
    console.print(plain(f"  {report.state}; {report.chunk_rate_hz:.1f} chunks/s, {report.action_rate_hz:.1f} actions/s"))
    ages = ", ".join(f"{name} {1e3 * age_s:.0f} ms" for name, age_s in report.ages_s.items())
    console.print(plain(f"  age of the newest readings: {ages or 'none'}"))
    if report.refused:
        console.print(plain(f"  refused: {', '.join(f'{name} {count}' for name, count in report.refused.items())}"))
    if report.commanded:
        table = Table("action", "would be commanded", "limits", "largest step in one period")
        for one in report.commanded:
            table.add_row(
                plain(one.action),
                f"{one.lowest:.4g} to {one.highest:.4g}",
                f"{one.lower:.4g} to {one.upper:.4g}",
                f"{one.largest_step:.4g}",
            )
        console.print(table)
    for problem in report.problems:
        console.print(plain(f"  {problem}"), style="red", soft_wrap=True)
    return report.problems
