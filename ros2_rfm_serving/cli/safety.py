"""`rfm audit safety`: check of all robot motion in a recording against the guarantees of docs/safety.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.monitoring.plain import plain
from ros2_rfm_serving.operate.extras import needing
from ros2_rfm_serving.operate.inputs import console
from ros2_rfm_serving.operate.progress import spinner

if TYPE_CHECKING:
    from ros2_rfm_serving.audit.safety import Kept

MOST_SHOWN = 20


def safety(
    bag: Annotated[Path, typer.Argument(help="Recording, of `rfm record` or `rfm up --record`; a folder or one of its files")],
    as_json: Annotated[bool, typer.Option("--json", help="One line, for programs")] = False,
) -> None:
    """Asks of every control period of every robot whether it keeps what docs/safety.md guarantees, by ten rules.

    Unreadable parts are listed, and not judged; `rfm audit verify` tells whether anything is missing.

    Example:  rfm audit safety /tmp/shift

    Exit code: 0 when all of it is kept, 1 when something is not, 2 when it cannot be read.
    """
    with needing("audit", "rfm audit safety"):
        from ros2_rfm_serving.audit.bag import Bag
    from ros2_rfm_serving.audit.log import AuditLog
    from ros2_rfm_serving.audit.safety import kept

    with spinner("checking every control period"):
        recording = Bag(bag)
        log = AuditLog(recording.pages())
        found = kept(log)
    if not log.robots:
        raise RfmError(f"{bag} has no audit log of a robot; record with `rfm up --record` or `rfm record`")
    damages = [*recording.damages, *log.damaged]
    if as_json:
        print(json.dumps({"judged": found.judged, "broken": [one._asdict() for one in found.broken], "damages": damages}))
    else:
        _show(found, damages)
    raise typer.Exit(1 if found.broken else 0)


def _show(found: Kept, damages: list[str]) -> None:
    table = Table(title="what docs/safety.md guarantees", title_justify="left")
    for heading in ("rule", "asked", "broken"):
        table.add_column(heading, justify="left" if heading == "rule" else "right")
    for rule, asked in found.judged.items():
        table.add_row(rule, str(asked), str(sum(one.rule == rule for one in found.broken)))
    console.print(table)
    for damage in damages:
        console.print(plain(f"not judged: {damage}"), soft_wrap=True)
    for one in found.broken[:MOST_SHOWN]:
        console.print(plain(f"{one.stamp_s:.3f} {one.robot}: {one.rule}: {one.what}"))
