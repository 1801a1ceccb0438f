"""`rfm replay --infer`: recorded batches, run again on their engines."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.monitoring.plain import plain
from ros2_rfm_serving.operate.inputs import console
from ros2_rfm_serving.operate.progress import spinner

if TYPE_CHECKING:
    from ros2_rfm_serving.audit.bag import Bag
    from ros2_rfm_serving.audit.servers.infer import Inferred

SAME, OTHER_BYTES, NOTHING_RAN = 0, 1, 2
FIGURES = ("batches", "rows", "same", "alone", "on_edge", "off", "unrecorded", "skipped")


def infer_again(recording: Bag, models: Path | None, *, as_json: bool) -> int:
    """Run the batches again and return the exit code.
    It is 0 for the same bytes and each row alone within 1e-5, 1 otherwise, 2 when nothing could run. Raises: `RfmError`."""
    from ros2_rfm_serving.audit.servers.rerun import Rerun

    began_s, rerun = time.monotonic(), Rerun(recording, models)
    with spinner("building the engines") as show:
        for _ in rerun.run():
            show(f"running batches again: {rerun.num_batches}")
    if not rerun.results:
        raise RfmError(f"{recording.path} has no audit log of a server; `rfm audit verify` says what is in it")
    if as_json:
        chains = [{name: _plain(getattr(one, name)) for name in ("writer", *FIGURES, "notes")} for one in rerun.results]
        print(json.dumps({"took_s": time.monotonic() - began_s, "chains": chains}))
    else:
        _show(rerun.results, time.monotonic() - began_s)
    return _code(rerun.results)


def _plain(value: Any) -> Any:
    """Return None for infinity and NaN, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _code(results: list[Inferred]) -> int:
    from ros2_rfm_serving.audit.servers.infer import ALONE_LIMIT

    if any(one.same < one.rows or one.alone > ALONE_LIMIT for one in results):
        return OTHER_BYTES
    return SAME if any(one.rows for one in results) else NOTHING_RAN


def _show(results: list[Inferred], took_s: float) -> None:
    table = Table(title="run again", title_justify="left")
    for heading in ("writer", "batches", "rows", "same bytes", "alone off by", "others off by", "not recorded", "not run"):
        table.add_column(heading, justify="left" if heading == "writer" else "right")
    for one in results:
        counts = f"{one.batches}", f"{one.rows}", f"{one.same}", f"{one.alone:.2g}", f"{one.off:.2g}"
        table.add_row(plain(one.writer), *counts, f"{one.unrecorded}", f"{one.skipped}")
    console.print(table)
    for one in results:
        for note in one.notes:
            console.print(plain(f"{one.writer}: {note}"), soft_wrap=True)
        for request, _ in one.different:
            who = f"{request.robot}/{request.component}, session {request.session_epoch}, episode {request.episode}"
            console.print(plain(f"{one.writer}: other bytes: {who}, sequence {request.sequence}"), soft_wrap=True)
    rows = sum(one.rows for one in results)
    console.print(f"{rows} rows in {took_s:.1f} s; `off`: the largest difference of an action, model space", soft_wrap=True)
