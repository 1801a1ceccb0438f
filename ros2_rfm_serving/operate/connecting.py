"""Implementation of `rfm connect` between the graph and the files: it asks for undecidable facts, and checks the written files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.live_graph.compare import GraphFinding, compare
from ros2_rfm_serving.factory.live_graph.files import (
    STAND_IN_GPU,
    FactoryEntry,
    factory_text,
    robot_text,
    stand_in_catalogue,
    stand_in_contract,
)
from ros2_rfm_serving.factory.live_graph.presets import Preset
from ros2_rfm_serving.factory.live_graph.propose import Answers, Proposal, UndecidedError, answered, propose
from ros2_rfm_serving.factory.live_graph.snapshot import GraphSnapshot
from ros2_rfm_serving.factory.robot_file import RobotFile
from ros2_rfm_serving.operate.inputs import write_text
from ros2_rfm_serving.profiles.files import format_rows
from ros2_rfm_serving.profiles.table import ProfileRow
from ros2_rfm_serving.types import ModelContract

if TYPE_CHECKING:
    from ros2_rfm_serving.ros.robot.settings import RobotSettings

STAND_IN_MS = 20.0
STAND_IN_RATES_HZ = (1.0, 40.0)
Ask = Callable[[UndecidedError], str]


@dataclass(frozen=True, kw_only=True)
class Target:
    """Destination of the files, and the names in the descriptor."""

    folder: Path
    model: str
    """Model of the catalogue; empty: a stand-in is written."""
    gpu_type: str
    slo_ms: float
    prompt: str
    profiles: Path | None
    """Profiles folder that users of the files have to name; None: the shipped one."""


@dataclass(frozen=True, kw_only=True)
class Written:
    robot: Path
    factory: Path
    profiles: Path | None
    """Folder for `--profiles`; None: the shipped one."""

    @property
    def stand_in(self) -> tuple[Path, ...]:
        """Catalogue and profile of a stand-in, in `profiles`."""
        return (self.profiles / "models.yaml", self.profiles / "stand_in.csv") if self.profiles else ()


def decided_proposal(
    snapshot: GraphSnapshot, contract: ModelContract | None, preset: Preset | None, answers: Answers, ask: Ask
) -> Proposal:
    """Return the proposal, asking until nothing is undecided. ask: raises where there is no user to answer."""
    while True:
        try:
            return propose(snapshot, contract, preset, answers)
        except UndecidedError as undecided:
            answers = answered(answers, undecided.option, ask(undecided))


def free_files(robot: str, folder: Path, *, has_model: bool) -> Written:
    """Return the files that will be written. Raises: `ConfigurationError` when one exists already."""
    written = Written(
        robot=folder / f"{robot}.yaml", factory=folder / "factory.yaml", profiles=None if has_model else folder / "profiles"
    )
    for file in (written.robot, written.factory, *written.stand_in):
        if file.exists():
            raise ConfigurationError("exists already", file=str(file), fix="remove it, or give another --out")
    return written


def write_files(proposal: Proposal, contract: ModelContract | None, target: Target, seen: str) -> Written:
    """Write the robot's file, the descriptor, and a catalogue with a stand-in where no model was named.
    Raises: `ConfigurationError` when a file exists, or a folder cannot be written to."""
    name = proposal.robot
    written = free_files(name, target.folder, has_model=bool(target.model))
    model = target.model or f"stand_in/{name}"
    for folder in filter(None, (target.folder, written.profiles)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"cannot be made: {error.strerror}", file=str(folder), key="--out") from error
    write_text(written.robot, robot_text(proposal, seen))
    if written.profiles:
        catalogue, profile = written.stand_in
        write_text(catalogue, stand_in_catalogue(model, proposal))
        write_text(profile, _stand_in_profile(model))
    entry = FactoryEntry(
        task=name,
        robot_file=written.robot.name,
        model=model,
        gpu_type=target.gpu_type or STAND_IN_GPU,
        prompt=target.prompt,
        slo_ms=target.slo_ms,
        is_stand_in=not target.model,
    )
    write_text(written.factory, factory_text(entry, proposal, contract or stand_in_contract(model, proposal)))
    return replace(written, profiles=written.profiles or target.profiles)


def _stand_in_profile(model: str) -> str:
    statistics = (STAND_IN_MS,) * 5
    rows = [ProfileRow(model, STAND_IN_GPU, "fixed", 1, rate_hz, *statistics) for rate_hz in STAND_IN_RATES_HZ]
    return format_rows(rows, "A stand-in of `rfm connect`: nothing was measured, no model runs.")


def settings_of_file(file: Path, robot: str) -> RobotSettings:
    """Return the settings that robot_node reads from a file. Raises: `ConfigurationError` that names file, key, value and fix."""
    from ros2_rfm_serving.robot import RobotCore
    from ros2_rfm_serving.ros.node.draft import draft
    from ros2_rfm_serving.ros.robot.settings import robot_settings

    own = RobotFile.read(file)
    try:
        settings = robot_settings(draft(own.parameters), robot)
        RobotCore(settings.config)
    except ConfigurationError as error:
        raise own.source.error(own.where.get(error.key, (error.key,)), error.problem, error.fix) from None
    return settings


def compare_file(file: Path, robot: str, snapshot: GraphSnapshot, namespace: str) -> list[GraphFinding]:
    """Return the differences between the graph and a robot's file. Raises: `ConfigurationError`."""
    from ros2_rfm_serving.ros.tools.robot_interface import robot_interface
    from ros2_rfm_serving.ros.wire.qos import Names

    return compare(robot_interface(settings_of_file(file, robot), Names(namespace), str(file)), snapshot)
