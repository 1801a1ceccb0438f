"""`rfm export`: a recording, as examples for training."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.plain import plain
from ros2_rfm_serving.operate.extras import needing
from ros2_rfm_serving.operate.progress import spinner

if TYPE_CHECKING:
    from ros2_rfm_serving.audit.bag import Bag
    from ros2_rfm_serving.audit.export.frames import Episode, Skipped

console = Console()
ONLY = ("all", "success")
MOST_LEFT_OUT = 0.1
"""Share of the episodes that may be left out without the user having asked for it."""


def export(
    bag: Annotated[Path, typer.Argument(help="Recording, of `rfm record` or `rfm up --record`")],
    lerobot: Annotated[Path, typer.Option(help="Folder that gets the LeRobotDataset; it must not exist")],
    robot: Annotated[list[str] | None, typer.Option(help="Only of this robot; may be given several times")] = None,
    task: Annotated[list[str] | None, typer.Option(help="Only of this task; may be given several times")] = None,
    only: Annotated[str, typer.Option(help="all; success: episodes that succeeded")] = "all",
    videos: Annotated[bool, typer.Option("--videos", help="Images as videos: smaller, and not quite what was sent")] = False,
    rate_hz: Annotated[float, typer.Option(min=0, help="Control rate of robots whose recording declares none")] = 0.0,
    unverified: Annotated[bool, typer.Option("--unverified", help="Also a recording that was changed since")] = False,
) -> None:
    """Writes what the robots of a recording did as a LeRobotDataset: a frame per executed command, with where it came from, whether
    the episode succeeded, and whether people intervened (docs/export.md).

    Example:  rfm export /tmp/shift --lerobot /tmp/dataset --only success, then: rfm train policy --dataset /tmp/dataset

    Exit code: 0; 1 when the data set was written, but more than a tenth of the episodes was left out; 2 when nothing in the
    recording can be exported, or `rfm audit verify` finds that it was changed.
    """
    if only not in ONLY:
        raise typer.BadParameter(f"{only!r} is not one of {', '.join(ONLY)}")
    if lerobot.exists():
        raise ConfigurationError("it is there already", file=str(lerobot), key="--lerobot", fix="name another folder, or remove it")
    with needing("audit", "rfm export"):
        from ros2_rfm_serving.audit.bag import Bag
        from ros2_rfm_serving.audit.export.frames import Skipped, same_shape, shape_of
        from ros2_rfm_serving.audit.trust import check_unchanged
    with spinner("verifying the recording"):
        skipped, recording = Skipped(), Bag(bag)
        lines = check_unchanged(recording, "export", anyway=unverified)
    for line in lines:
        console.print(plain(line), soft_wrap=True)
    with needing("lerobot", "rfm export --lerobot"):
        from ros2_rfm_serving.audit.export.lerobot import write
    found = _episodes(recording, skipped, robot or [], task or [], only, rate_hz)
    first = next(found, None)
    if first is None:
        _tell(skipped)
        fix = "record with `rfm up --record`, images included; `rfm audit verify` says what is in it"
        raise ConfigurationError("no episode of a robot that can be exported", file=str(bag), fix=fix)
    with spinner("writing episodes") as show:
        counted = _Counted(same_shape(itertools.chain([first], found), first, skipped), show)
        num_frames = write(counted, shape_of(first), lerobot, bag.resolve().stem, videos=videos)
    console.print(f"{lerobot}: {num_frames} frames in {counted}", soft_wrap=True)
    _tell(skipped)
    left_out, num_left_out = skipped.left_out, skipped.left_out.total()
    if num_left_out > MOST_LEFT_OUT * (num_left_out + counted.total):
        why = "; ".join(f"{count} {why}" for why, count in left_out.items())
        console.print(f"{num_left_out} of {num_left_out + counted.total} episodes were left out: {why}", soft_wrap=True)
        raise typer.Exit(1)


def _episodes(bag: Bag, skipped: Skipped, robots: list[str], tasks: list[str], only: str, rate_hz: float) -> Iterator[Episode]:
    from ros2_rfm_serving.audit.export.episodes import episodes
    from ros2_rfm_serving.audit.export.frames import NO_SUCCESS
    from ros2_rfm_serving.audit.export.labels import SCORE, STATUS, Labels

    told = ((one.type, one.time_ns / 1e9, bag.read(one)) for one in bag.messages(STATUS, SCORE))
    labels = Labels().add(told)
    for episode in episodes(bag.pages(), bag.blob, labels, skipped, robots=robots, tasks=tasks, rate_hz=rate_hz):
        if only == "success" and not episode.success:
            skipped.episodes[NO_SUCCESS] += 1
        else:
            yield episode


class _Counted:
    """Iterator over episodes that counts them."""

    def __init__(self, found: Iterator[Episode], show: Callable[[str], None]) -> None:
        """Wrap an iterator. show: displays progress."""
        self._found, self._show = found, show
        self._words = {True: "succeeded", False: "failed", None: "of which nobody said how they ended"}
        self._counts: dict[str, int] = dict.fromkeys(self._words.values(), 0)
        self._robots: dict[str, Any] = {}

    def __iter__(self) -> Iterator[Episode]:
        for episode in self._found:
            self._counts[self._words[episode.success]] += 1
            self._robots[episode.robot] = None
            self._show(f"writing episodes: {self.total}")
            yield episode

    @property
    def total(self) -> int:
        return sum(self._counts.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{count} {word}" for word, count in self._counts.items() if count)
        return f"{self.total} episodes of {', '.join(self._robots)}: {parts}"


def _tell(skipped: Skipped) -> None:
    for what, counts in (("episodes", skipped.episodes), ("frames", skipped.frames)):
        for why, count in counts.items():
            console.print(f"skipped: {count} {what}, {why}", soft_wrap=True)
    for why, count in skipped.resampled.items():
        if count:
            console.print(f"resampled: {count} frames {why}", soft_wrap=True)
