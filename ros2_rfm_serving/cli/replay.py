"""`rfm replay`: makes every decision of a recording again, and compares."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ros2_rfm_serving.cli.replay_infer import infer_again
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.monitoring.plain import plain
from ros2_rfm_serving.operate.extras import needing
from ros2_rfm_serving.operate.inputs import console
from ros2_rfm_serving.operate.progress import spinner
from ros2_rfm_serving.shipped import shipped

if TYPE_CHECKING:
    from ros2_rfm_serving.audit.bag import Bag
    from ros2_rfm_serving.audit.replay import Makers, Replayed

DIFFERENT, NOT_REPLAYED = 1, 2
MOST_CHARACTERS = 400
"""Maximum number of characters of each side of a difference."""


def replay(
    bag: Annotated[Path, typer.Argument(help="Recording, of `rfm record` or `rfm up --record`; a folder or one of its files")],
    robot: Annotated[str, typer.Option(help="Replay only this robot")] = "",
    infer: Annotated[bool, typer.Option(help="Run the recorded batches again on their engines instead")] = False,
    profiles: Annotated[Path | None, typer.Option(help="Folder of the profiles that it was planned with")] = None,
    models: Annotated[Path | None, typer.Option(help="Folder of model bundles, with --infer")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line, for programs")] = False,
    with_: Annotated[str, typer.Option("--with", metavar="NAME=VALUE,...", help="What if: dispatch=fifo, batch_size=8, ...")] = "",
    factory: Annotated[Path | None, typer.Option(metavar="FACTORY.yaml", help="What if another factory had been declared")] = None,
    horizon: Annotated[str, typer.Option(help="What if as many actions of a chunk: static:8, confidence:0.4")] = "",
    check: Annotated[bool, typer.Option("--what-if", help="What if nothing was changed: how close such a replay comes")] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Of a what-if: so many draws")] = 5,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Of a what-if: draw it")] = None,
    publish: Annotated[bool, typer.Option("--publish", help="Play it to the graph, for rviz, Foxglove, `rfm status`")] = False,
    rate: Annotated[float, typer.Option(help="With --publish: recorded seconds per second")] = 1.0,
    loop: Annotated[bool, typer.Option(help="With --publish: again and again")] = False,
    prefix: Annotated[str, typer.Option(help="With --publish: below this namespace, as beside a factory at work")] = "",
    domain: Annotated[int, typer.Option(help="With --publish: ROS domain; -1: ROS_DOMAIN_ID or 0")] = -1,
    unverified: Annotated[bool, typer.Option("--unverified", help="With --publish: even if it was changed since")] = False,
) -> None:
    """Gives the recorded inputs to every decision core again. It must make the same decisions, command by command; the first
    difference is shown with both sides. With --infer the recorded batches run again on their engines, and must give the same bytes.
    With --with, --factory, --horizon: what would have happened, in virtual time (docs/replay.md). With --publish: plays messages
    to the graph.

    Examples:  rfm replay /tmp/shift --robot push_1   |   rfm replay /tmp/shift --with dispatch=fifo

               rfm replay /tmp/shift --publish --rate 2

    Exit code: 0 without a difference, 1 with one, 2 when something could not be replayed, or was not recorded.
    """
    with needing("audit", "rfm replay"):
        from ros2_rfm_serving.audit.bag import Bag

    if publish:
        from ros2_rfm_serving.operate import playing

        playing.publish(bag, playing.Playing(rate=rate, loop=loop, prefix=prefix, domain=domain, unverified=unverified))
        return
    if with_ or factory or horizon or check:
        from ros2_rfm_serving.reports.what_if import Asked, show_what_if

        asked = Asked(settings=with_, horizon=horizon, factory=factory, seeds=seeds, profiles=profiles, as_json=as_json, plot=plot)
        show_what_if(bag, asked)
        return
    began_s = time.monotonic()
    with spinner("replaying the recording") as show:
        recording = Bag(bag)
        results = [] if infer else _replayed(recording, robot, profiles, show)
    if infer:
        raise typer.Exit(infer_again(recording, models, as_json=as_json))
    took_s = time.monotonic() - began_s
    if not results:
        what = f"of a robot {robot!r}" if robot else "that can be replayed"
        raise RfmError(f"{bag} has no audit log {what}; `rfm audit verify` names what is in it")
    if as_json:
        print(json.dumps({"took_s": took_s, "chains": [_as_json(one) for one in results]}))
    else:
        _show(results, list(recording.damages), took_s)
    raise typer.Exit(_code(results))


def makers(profiles: Path | None = None) -> Makers:
    """Return the replayers by the beginning of a writer's name."""
    from ros2_rfm_serving.audit.replay import brains
    from ros2_rfm_serving.audit.robots.replay import RobotReplay
    from ros2_rfm_serving.audit.schedulers.replay import SchedulerReplay
    from ros2_rfm_serving.audit.servers.replay import ServerReplay

    folder = profiles or shipped("config", "profiles")
    return {"robot": brains(RobotReplay), "server": brains(ServerReplay), "scheduler": brains(lambda: SchedulerReplay(folder))}


def _replayed(recording: Bag, robot: str, profiles: Path | None, show: Callable[[str], None]) -> list[Replayed]:
    from ros2_rfm_serving.audit.replay import replay as replayed

    found: dict[tuple[str, int], Replayed] = {}
    wanted = (lambda writer: writer == f"robot/{robot}") if robot else (lambda writer: True)
    for result in replayed(recording.pages(), makers(profiles), wanted):
        found[result.writer, result.run] = result
        show(f"replaying: {sum(one.decisions for one in found.values())} decisions of {len(found)} chains")
    return list(found.values())


def _code(results: list[Replayed]) -> int:
    if any(one.difference for one in results):
        return DIFFERENT
    incomplete = any(one.refused or one.broke_off for one in results)
    return NOT_REPLAYED if incomplete or not any(one.decisions for one in results) else 0


def _show(results: list[Replayed], damages: list[str], took_s: float) -> None:
    table = Table(title="decisions made again", title_justify="left")
    for heading in ("writer", "run", "decisions", "states compared", "not replayed", "seconds", "result"):
        table.add_column(heading, justify="left" if heading in ("writer", "run", "result") else "right")
    for one in results:
        result = (
            "another decision"
            if one.difference
            else "could not be replayed"
            if one.refused
            else "breaks off"
            if one.broke_off
            else "the same"
        )
        figures = f"{one.decisions}", f"{one.snapshots}", f"{one.skipped}", f"{one.seconds:.1f}"
        table.add_row(plain(one.writer), f"{one.run:016x}", *figures, result)
    console.print(table)
    for one in results:
        for note in one.notes:
            console.print(plain(f"{one.writer}: {note}"), soft_wrap=True)
        if one.difference:
            _show_difference(one)
    for damage in damages:
        console.print(plain(f"file: {damage}"), soft_wrap=True)
    seconds = sum(one.seconds for one in results)
    console.print(
        f"{sum(one.decisions for one in results)} decisions, {seconds:.1f} s of recorded time in {took_s:.1f} s: ", end=""
    )
    console.print(f"{seconds / max(took_s, 1e-6):.0f} times real time", soft_wrap=True)


def _show_difference(one: Replayed) -> None:
    assert one.difference is not None
    at = one.at
    when = f" ({datetime.fromtimestamp(at['stamp_s']).isoformat(timespec='milliseconds')})" if "stamp_s" in at else ""
    what = f"{at.get('kind')} {at.get('event', '')}".strip()
    console.print(plain(f"{one.writer} (run {one.run:016x}), record {at.get('n')}, {what}, t {at.get('t')}{when}:"), soft_wrap=True)
    console.print(plain(f"  {one.difference.field}"), soft_wrap=True)
    for side, value in (("recorded", one.difference.recorded), ("replayed", one.difference.replayed)):
        console.print(plain(f"    {side}: {json.dumps(value)[:MOST_CHARACTERS]}"), soft_wrap=True)


def _as_json(one: Replayed) -> dict[str, Any]:
    told = {name: getattr(one, name) for name in ("writer", "run", "decisions", "snapshots", "skipped", "seconds", "notes")}
    difference = {**one.difference._asdict(), "at": dict(one.at)} if one.difference else None
    return {**told, "refused": one.refused, "broke_off": one.broke_off, "difference": difference}
