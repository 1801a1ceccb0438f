"""Episodes of one robot, from its audit log record by record."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.audit.chain import OPERATOR_COMMAND, Page, check_format, records
from ros2_rfm_serving.audit.export.clock import SLOWEST_PERIODS, is_too_slow, on_clock
from ros2_rfm_serving.audit.export.frames import Episode, Frame, Skipped, Source
from ros2_rfm_serving.audit.export.labels import Labels
from ros2_rfm_serving.audit.log import real
from ros2_rfm_serving.audit.robots.records import EXECUTES
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.server.images import decode
from ros2_rfm_serving.types import SYSTEM1, EncodedImage

NO_IMAGE, NO_EPISODE = "no image of that time was recorded, or none that can be decoded", "no request told which episode it is"
NO_FRAME = "none of whose commands could become a frame"
NO_RATE = "whose recording does not declare the robot's control_rate_hz: give --rate-hz"
NO_CLOCK = f"whose commands usually came more than {SLOWEST_PERIODS} periods of the control rate apart"
AT_WORK = frozenset({"EXECUTING", "STOPPED", "WAITING"})
"""Phases of a task in which the robot's core moves it."""
Blob = Callable[[str], bytes | None]


@dataclass
class Story:
    """Reader of one run of a robot, record by record."""

    robot: str
    blob: Blob
    labels: Labels
    skipped: Skipped
    frames: list[Frame] = field(default_factory=list)
    number: int = 0
    """Number of the episode; 0 if unknown."""
    names: tuple[str, ...] = ()
    rate_hz: float = math.nan
    """Declared control rate; NaN if unknown."""
    is_delta: tuple[bool, ...] = ()
    """[A] columns that hold displacements, as declared."""
    offset_s: float = 0.0
    """ROS time minus the robot's clock."""
    images: tuple[EncodedImage, ...] = ()
    sizes: tuple[tuple[int, ...], ...] = ()
    """Shapes of these images; `first_sizes` has those of the episode's first frame."""
    first_sizes: tuple[tuple[int, ...], ...] = ()
    images_s: float = math.nan
    instruction: str = ""
    state: Mapping[str, Any] = field(default_factory=dict)
    person: bool = False
    num_commands: int = 0
    """Number of the episode's commands, with those without a frame."""

    def read(self, page: Page) -> Iterator[Episode]:
        try:
            found = list(records(page))
        except RfmError:
            self.skipped.frames["of damaged pages of the audit log"] += 1
            return
        for record in found:
            check_format(page.writer, record)
            try:
                yield from self._take(record)
            except (AttributeError, LookupError, TypeError, ValueError, RfmError):
                self.skipped.frames["of records that cannot be read"] += 1

    def _take(self, record: Mapping[str, Any]) -> Iterator[Episode]:
        if "stamp" in record:
            self.offset_s = record["stamp"] - record["t"]
        kind = record["kind"]
        if kind == "begin":
            self._begin(record.get("config"))
        elif kind == "snapshot" and not self.state:
            self.state = _state_of(record["state"])
        elif kind == "closed":
            yield from filter(None, [self.end()])
        elif kind == "transition":
            self.state = record["to"]
        elif kind == OPERATOR_COMMAND:
            self.person = True
        elif kind == "tick":
            yield from self._tick(record)

    def _begin(self, config: Any) -> None:
        self.names = tuple(_inside(config, "action_names") or ())
        self.rate_hz = float(_inside(config, "control_rate_hz") or self.rate_hz)
        types = _inside(config, "command_types") or [_inside(config, "command_type")] * len(self.names)
        self.is_delta = tuple(isinstance(kind, Mapping) and kind.get("member") == "DELTA" for kind in types)

    def _tick(self, record: Mapping[str, Any]) -> Iterator[Episode]:
        why = record.get("why") or {}
        for request in record.get("requests") or ():
            if request["component"] == SYSTEM1:
                yield from self._episode(request["episode"])
                self.instruction = request["instruction"]
            self._look(record["event"]["sensors"], required=request["component"] == SYSTEM1)
        if "chunk" in why:
            yield from self._episode(why["chunk"]["episode"])
        if record.get("command") is not None and self.state.get("phase", "EXECUTING").upper() in AT_WORK:
            self._frame(record, why)
        self.person = False

    def _episode(self, number: int) -> Iterator[Episode]:
        if number > self.number:  # robots count their episodes
            yield from filter(None, [self.end()])
            self.number = number

    def _look(self, sensors: Mapping[str, Any], *, required: bool) -> None:
        """Keep the images of a request. required: without them, the policy's input is unknown."""
        images = tuple(codec.value(image, self.blob) for image in sensors.get("images") or ())
        if sizes := _sizes(images):
            self.images, self.sizes, self.images_s = images, sizes, real(sensors.get("images_s"))
        elif required:
            self.images = ()

    def _frame(self, record: Mapping[str, Any], why: Mapping[str, Any]) -> None:
        self.num_commands += 1
        if not self.number or not self.images:
            self.skipped.frames[NO_IMAGE if self.number else NO_EPISODE] += 1
            return
        frame = self._made(record, why)
        first = self.frames[0] if self.frames else frame
        self.first_sizes = self.first_sizes if self.frames else self.sizes
        if self.sizes != self.first_sizes or not _is_like(frame, first):
            self.skipped.frames["of another shape, or with numbers that are none"] += 1
            return
        self.frames.append(frame)

    def _made(self, record: Mapping[str, Any], why: Mapping[str, Any]) -> Frame:
        chosen = str(why.get("source")) in EXECUTES
        return Frame(
            t_s=record["t"],
            state=np.asarray(codec.value(record["event"]["sensors"]["state"]), np.float32),
            images=self.images,
            camera_age_s=record["t"] - self.images_s,
            action=np.asarray(codec.value(record["command"]), np.float32),
            instruction=self.instruction,
            source=_source(why) if chosen else None,
            fallback="" if chosen else str(why.get("fallback") or why.get("source") or "unknown"),
            failsafe=str(self.state.get("state", "")),
            paused=bool(self.state.get("paused")),
            person=self.person or self.state.get("phase", "").upper() == "WAITING",
        )

    def end(self) -> Episode | None:
        """Return the episode so far; None without usable frames."""
        frames, self.frames = self.frames, []
        number, self.number, self.images = self.number, 0, ()
        commands, self.num_commands = self.num_commands, 0
        if problem := self._problem(frames):
            if number and commands:
                self.skipped.episodes[problem] += 1
            return None
        since_s, until_s = frames[0].t_s + self.offset_s, frames[-1].t_s + self.offset_s
        return Episode(
            robot=self.robot,
            number=number,
            task=self.labels.task(self.robot, number, until_s),
            action_names=_names(self.names, len(frames[0].action)),
            rate_hz=self.rate_hz,
            frames=self._on_clock(frames),
            success=self.labels.success(self.robot, number, since_s, until_s),
        )

    def _problem(self, frames: list[Frame]) -> str:
        """Return why an episode with these frames is left out; empty if it is included."""
        if not frames:
            return NO_FRAME
        if not (self.rate_hz > 0 and math.isfinite(self.rate_hz)):
            return NO_RATE
        return NO_CLOCK if is_too_slow(frames, self.rate_hz) else ""

    def _on_clock(self, frames: list[Frame]) -> list[Frame]:
        known = len(self.is_delta) == len(frames[0].action)
        found = on_clock(frames, self.rate_hz, self.is_delta if known else ())
        self.skipped.resampled["repeated, for a command that came later than the control rate says"] += found.num_repeated
        self.skipped.resampled["left out, for commands came faster than the control rate says"] += found.num_dropped
        return found.frames


def _is_like(frame: Frame, first: Frame) -> bool:
    """Return whether a frame fits into the columns of the first one, and all its numbers are finite."""
    cameras = [image.camera for image in frame.images] == [image.camera for image in first.images]
    same = frame.state.shape == first.state.shape and frame.action.shape == first.action.shape
    flat = frame.state.ndim == frame.action.ndim == 1
    return cameras and same and flat and bool(np.isfinite(frame.state).all() and np.isfinite(frame.action).all())


def _sizes(images: tuple[EncodedImage, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the images' shapes; empty if one cannot be decoded, which its server refused, too."""
    try:
        return tuple(decode(image).shape for image in images)
    except RfmError:
        return ()


def _state_of(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of a robot in a snapshot, in the form of a transition."""
    phase = state["task"]["phase"]["member"] if state["task"] else "IDLE"
    return {"state": state["failsafe"]["state"]["member"], "phase": phase, "paused": state["paused"]}


def _names(names: tuple[str, ...], size: int) -> tuple[str, ...]:
    """Return the robot's names of the actions if known, or else numbered names."""
    return names if len(names) == size else tuple(f"action_{number}" for number in range(size))


def _source(why: Mapping[str, Any]) -> Source | None:
    chunk = why.get("chunk")
    if not chunk:
        return None
    names = ("session_epoch", "episode", "sequence", "server", "model_hash")
    return Source(row=why.get("step", -1), **{name: chunk[name] for name in names})


def _inside(found: Any, name: str) -> Any:
    """Return the first value of a name at any depth."""
    if isinstance(found, Mapping):
        if name in found:
            return found[name]
        found = found.values()
    elif not isinstance(found, list):
        return None
    return next((one for one in (_inside(value, name) for value in found) if one is not None), None)
