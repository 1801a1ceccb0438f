"""`rfm audit explain`: why a robot did what it did at a moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.monitoring.plain import plain
from ros2_rfm_serving.operate.extras import needing
from ros2_rfm_serving.operate.progress import spinner
from ros2_rfm_serving.operate.running import newest_recording

if TYPE_CHECKING:
    from ros2_rfm_serving.audit.bag import Bag
    from ros2_rfm_serving.audit.explain.explanation import Explanation

console = Console()


def explain(
    bag: Annotated[
        Path | None,
        typer.Argument(
            metavar="[BAG]", show_default=False, help="Recording, of `rfm record` or `rfm up --record`; default: the newest here"
        ),
    ] = None,
    robot: Annotated[
        str, typer.Option(show_default=False, help="Its name, as in the schedule; default: the only one of the recording")
    ] = "",
    at: Annotated[
        str,
        typer.Option(
            show_default=False,
            help="14:03:12.4 (local time), seconds since the recording began, -30s (before its end), or an ISO time",
        ),
    ] = "",
    last: Annotated[bool, typer.Option("--last", help="The last moment of the robot: the default without --at")] = False,
    images: Annotated[Path | None, typer.Option(help="Save the images of the request in this folder, as PNG")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON")] = False,
) -> None:
    """Explains a moment of a robot: its sensor readings, its request and the reply, from which server, in which batch and of which
    model, the row that it executed and how limits changed it; or why it held, and since when.

    Examples:  rfm audit explain /tmp/shift --robot push_1 --at 14:03:12.4 --images /tmp/seen   |   rfm audit explain --at -30s

    Exit code: 0, or 2 when nothing was recorded of that robot then.
    """
    if at and last:
        raise ConfigurationError("name two moments", key="--at and --last", fix="leave out one of them")
    with needing("audit", "rfm audit explain"):
        from ros2_rfm_serving.audit.bag import Bag
    from ros2_rfm_serving.audit.explain.explain import explain as explained
    from ros2_rfm_serving.audit.explain.explain import window
    from ros2_rfm_serving.audit.explain.moments import last_tick_s, moment_of
    from ros2_rfm_serving.audit.log import AuditLog
    from ros2_rfm_serving.audit.trust import flaws_of
    from ros2_rfm_serving.audit.verify_bag import verify_bag

    if bag is None:
        bag = newest_recording()
        Console(stderr=True).print(plain(f"{bag}: the newest recording"))
    with spinner("explaining the moment, and verifying the recording"):
        recording = Bag(bag)
        at_s = moment_of(at or "-0s", recording.begins_ns / 1e9, recording.ends_ns / 1e9)
        log = AuditLog(recording.pages(), [window(at_s)])
        if not robot and len(log.robots) == 1:
            robot = log.robots[0]
        found = explained(log, robot, at_s if at else last_tick_s(log, robot, at_s))
        files, missing = _save_images(found, recording, images)
        flaws = flaws_of(verify_bag(Bag(bag)), window(at_s))
    if as_json:
        print(json.dumps({**found.as_json(), "image_files": list(map(str, files)), "not_as_written": flaws}))
        return
    for flaw in flaws:
        console.print(plain(f"NOT AS IT WAS WRITTEN: {flaw}"), soft_wrap=True)
    console.print(_picture(found))
    for words in (*map(str, files), *missing, *recording.damages):
        console.print(plain(words), soft_wrap=True)


def _save_images(found: Explanation, recording: Bag, folder: Path | None) -> tuple[list[Path], list[str]]:
    from ros2_rfm_serving.audit.explain import pictures
    from ros2_rfm_serving.audit.explain.explanation import clock

    if folder is None:
        return [], []
    if not found.images:
        return [], ["the recording has no request with images that led to it"]
    when = clock(found.stamp_s).replace(":", "")
    return pictures.save(found.images, recording.blob, folder, f"{found.robot}-{when}")


def _picture(found: Explanation) -> Table:
    from ros2_rfm_serving.audit.explain.explanation import clock

    title = plain(f"{found.robot} at {clock(found.stamp_s)}: {found.headline}")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold cyan", no_wrap=True)
    table.add_column()
    table.title, table.title_justify, table.title_style = title, "left", "bold"
    for part in found.parts:
        lines: Text = plain("\n".join(part.lines))
        table.add_row(part.name, lines if part.known else Text(str(lines), style="dim"))
    return table
