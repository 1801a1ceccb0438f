"""`rfm audit`: what was decided, why, and that nobody has changed it since."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ros2_rfm_serving.cli import explain, report, safety
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.monitoring.plain import plain
from ros2_rfm_serving.operate.extras import needing
from ros2_rfm_serving.operate.inputs import console

if TYPE_CHECKING:
    from ros2_rfm_serving.audit.bag import Bag
    from ros2_rfm_serving.audit.verify import Verified
    from ros2_rfm_serving.ros.monitor.recorded import Proofs

app = typer.Typer(help="What was decided, why, and that nobody has changed it since.", no_args_is_help=True)
MOST_TOLD = 50
app.command()(explain.explain)
app.command()(report.report)
app.command()(safety.safety)


@app.command()
def verify(
    bag: Annotated[Path, typer.Argument(help="Recording, of `rfm record` or `rfm up --record`; a folder or one of its files")],
    as_json: Annotated[bool, typer.Option("--json", help="One line, for programs")] = False,
    enclave: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also who has said each status and schedule, by this enclave's authority")
    ] = None,
) -> None:
    """Finds any record of the audit log that was changed, dropped, repeated, reordered or cut off, and says where.

    What it prints as `head` is another one for any other recording: kept elsewhere, it tells one that was written anew as a whole.

    Examples:  rfm audit verify /tmp/shift   |   rfm audit verify /tmp/shift --enclave security/enclaves/observer

    Exit code: 0 when all is as it was written, 1 when something is not, or is of nobody who has proven to say it, 2 when it cannot
    be read.
    """
    with needing("audit", "rfm audit verify"):
        from ros2_rfm_serving.audit.bag import Bag
    from ros2_rfm_serving.audit.verify import verify as verified

    recording = Bag(bag)
    found, damages = verified(recording.pages), list(recording.damages)
    if not found.chains and not damages:
        raise RfmError(f"{bag} has no audit log; record with `rfm up --record` or `rfm record`")
    proofs = _proofs(recording, enclave) if enclave else None
    if as_json:
        print(json.dumps(_as_json(found, damages) | ({"proofs": vars(proofs)} if proofs else {})))
    else:
        _show(found, damages)
        for line in _told(proofs) if proofs else ():
            console.print(plain(line), soft_wrap=True)
    raise typer.Exit(1 if found.flaws or damages or (proofs and proofs.unproven) else 0)


def _proofs(recording: Bag, enclave: Path) -> Proofs:
    """Raises: `ConfigurationError`."""
    with needing("security", "rfm audit verify --enclave"):
        from ros2_rfm_serving.ros.monitor.recorded import KINDS, check

    return check(recording.messages(*KINDS), enclave)


def _told(proofs: Proofs) -> Iterator[str]:
    for topic, number in sorted(proofs.unproven.items()):
        yield f"{topic}: {number} unproven, the first: {proofs.problems[topic]}"
    unproven = f"; {sum(proofs.unproven.values())} UNPROVEN" if proofs.unproven else ""
    yield f"{proofs.proven} statuses and schedules are proven, {proofs.repeated} repeat one{unproven}"


def _show(found: Verified, damages: list[str]) -> None:
    table = Table(title="chains", title_justify="left")
    for heading in ("writer", "run", "records", "lost on the way", "end", "head"):
        table.add_column(heading, justify="right" if heading in ("records", "lost on the way") else "left")
    for chain in found.chains:
        begins = f"{chain.begins} to " if chain.begins > 0 else ""
        end = "closed" if chain.closed else "as recorded" if chain.expected else "open"
        records = f"{begins}{chain.number - 1}" if begins else f"{chain.number}"
        table.add_row(plain(chain.writer), f"{chain.run:016x}", records, str(chain.num_lost), end, plain(chain.hash))
    console.print(table)
    for damage in damages:
        console.print(plain(f"file: {damage}"), soft_wrap=True)
    for flaw in found.flaws[:MOST_TOLD]:
        where = f", page {flaw.page}" if flaw.page >= 0 else ""
        told = f"{flaw.writer} (run {flaw.run:016x}), record {flaw.number}{where}: {flaw.problem}"
        console.print(plain(told), soft_wrap=True)
    if len(found.flaws) > MOST_TOLD:
        console.print(f"... and {len(found.flaws) - MOST_TOLD} more")
    lost = f"; {found.num_lost} were lost on the way, as the recorder noted" if found.num_lost else ""
    verdict = f"{len(found.flaws) + len(damages)} flaws" if found.flaws or damages else "as it was written"
    console.print(f"{found.num_records} records of {len(found.chains)} chains: {verdict}{lost}", soft_wrap=True)
    console.print(f"head {found.head}", soft_wrap=True)


def _as_json(found: Verified, damages: list[str]) -> dict[str, Any]:
    chains = [
        {
            "writer": chain.writer,
            "run": chain.run,
            "begins": chain.begins,
            "next": chain.number,
            "hash": chain.hash,
            "closed": chain.closed,
            "lost": chain.num_lost,
        }
        for chain in found.chains
    ]
    flaws = [{name: getattr(flaw, name) for name in ("writer", "run", "number", "page", "problem")} for flaw in found.flaws]
    return {"head": found.head, "records": found.num_records, "chains": chains, "flaws": flaws, "damages": damages}
