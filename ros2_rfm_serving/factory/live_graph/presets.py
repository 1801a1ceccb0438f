"""Presets of known robots, `config/robots/presets/*.yaml`: parameters of a robot, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import yaml_source
from ros2_rfm_serving.factory.section import Section
from ros2_rfm_serving.factory.yaml_source import did_you_mean

CHOSEN = "chosen here"
"""Source of a value that no file of the driver has."""


class PresetSource(Section):
    repository: str
    """owner/name on GitHub."""
    commit: str = Field(pattern="^[0-9a-f]{40}$")
    file: str

    def __str__(self) -> str:
        return f"{self.repository}@{self.commit[:8]} {self.file}"


class PresetValue(Section):
    value: Any
    source: str = CHOSEN
    """Name of one of the preset's sources, or `chosen here`."""
    note: str = ""


class JointStatesGraph(Section):
    topic: str
    rate_hz: float = Field(gt=0)
    joints: tuple[str, ...]
    """Joints in the order in which the driver publishes them."""
    fields: tuple[str, ...] = ("position",)
    start: tuple[float, ...]
    """Initial position of each joint of a stand-in."""
    source: str


class OdometryGraph(Section):
    topic: str
    rate_hz: float = Field(gt=0)
    source: str


class CommandsGraph(Section):
    node: str
    topic: str
    type: str
    joints: tuple[str, ...] = ()
    source: str


class PresetGraph(Section):
    """Topics of the driver on the graph: a stand-in publishes and subscribes to the same."""

    joint_states: JointStatesGraph | None = None
    odometry: OdometryGraph | None = None
    commands: CommandsGraph


class Preset(Section):
    name: str = ""
    """Name of its file, without the extension."""
    title: str
    sources: Mapping[str, PresetSource]
    parameters: Mapping[str, PresetValue]
    graph: PresetGraph

    def value(self, parameter: str, default: Any = None) -> Any:
        found = self.parameters.get(parameter)
        return default if found is None else found.value

    def comment(self, parameter: str) -> str:
        """Return the source of the parameter's value, with its note; empty: the preset does not have it."""
        found = self.parameters.get(parameter)
        if found is None:
            return ""
        source = str(self.sources[found.source]) if found.source in self.sources else CHOSEN
        return f"{source}: {found.note}" if found.note else source


def load_preset(folder: Path, name: str) -> Preset:
    """Return the preset of this name. Raises: `ConfigurationError`, also for a source that the preset does not name."""
    known = preset_names(folder)
    if name not in known:
        raise ConfigurationError(f"{name!r} is no preset", key="--preset", fix=did_you_mean(name, known))
    source = yaml_source.read(folder / f"{name}.yaml")
    preset = source.validate(Preset, (), source.data).model_copy(update={"name": name})
    graph = preset.graph
    named = [value.source for value in preset.parameters.values() if value.source != CHOSEN]
    named += [part.source for part in (graph.joint_states, graph.odometry, graph.commands) if part is not None]
    for one in named:
        if one not in preset.sources:
            fix = did_you_mean(one, preset.sources)
            raise ConfigurationError(f"the source {one!r} is not among its sources", file=str(folder / f"{name}.yaml"), fix=fix)
    return preset


def preset_names(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.yaml"))
