"""`rfm audit report`: a shift on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.operate.extras import needing
from ros2_rfm_serving.operate.progress import spinner

console = Console()


def report(
    bag: Annotated[Path, typer.Argument(help="Recording, of `rfm record` or `rfm up --record`")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File; default: <BAG>.html")] = None,
) -> None:
    """Writes an HTML page of a recording: success by task and robot, SLOs, staleness, timelines, and every incident with what may
    be why and its explanation. One file without scripts; nothing in it comes from elsewhere.

    Example:  rfm audit report /tmp/shift -o shift.html

    Exit code: 0, or 2 when it is no recording.
    """
    with needing("audit", "rfm audit report"):
        from ros2_rfm_serving.audit.report.report import report as page_of
    file = out or bag.with_name(f"{bag.resolve().stem}.html")
    with spinner("reading the recording and explaining its incidents"):
        page = page_of(bag)
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"cannot be written: {error.strerror}", file=str(file), key="--out", fix="name another file"
        ) from None
    console.print(str(file), soft_wrap=True)
