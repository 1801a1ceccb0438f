"""`rfm audit`: recorded decisions, their reasons, and the proof that they were not changed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ros2_rfm_serving.cli import explain, report, safety
from ros2_rfm_serving.errors import RfmError
from ros2_rfm_serving.monitoring.plain import counted, plain
from ros2_rfm_serving.operate.extras import needing
from ros2_rfm_serving.operate.inputs import console
from ros2_rfm_serving.operate.progress import spinner

if TYPE_CHECKING:
    from ros2_rfm_serving.audit.bag import Bag
    from ros2_rfm_serving.audit.findings import Finding, Kind
    from ros2_rfm_serving.audit.verify_bag import Prove, Verdict
    from ros2_rfm_serving.ros.monitor.recorded import Proofs

app = typer.Typer(help="What was decided, why, and that nobody has changed it since.", no_args_is_help=True)
MOST_TOLD, MOST_OF_A_KIND = 50, 5
app.command()(explain.explain)
app.command()(report.report)
app.command()(safety.safety)


@app.command()
def verify(
    bag: Annotated[Path, typer.Argument(help="Recording, of `rfm record` or `rfm up --record`; a folder or one of its files")],
    as_json: Annotated[bool, typer.Option("--json", help="One line, for programs")] = False,
    enclave: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also check who signed pages, statuses and schedules, by its authority")
    ] = None,
) -> None:
    """Finds whatever was changed, removed, inserted, reordered or moved in time: records of the audit log, messages of any topic,
    bytes of any file. It says what, where and when, and distinguishes messages that the recorder lost from those that were removed.

    Every recording has a `head` of its own. Keep it in another place to detect a recording that was written anew as a whole.

    Examples:  rfm audit verify /tmp/shift   |   rfm audit verify /tmp/shift --enclave security/enclaves/observer

    Exit code: 0 when all is as it was written, 1 when something was changed, has an open end, or lacks a valid signature
    where --enclave asks for one, 2 when it cannot be read.
    """
    with needing("audit", "rfm audit verify"):
        from ros2_rfm_serving.audit.bag import Bag
    from ros2_rfm_serving.audit.bag import PAGE
    from ros2_rfm_serving.audit.verify_bag import verify_bag

    with spinner("verifying chains, messages and files"):
        recording = Bag(bag)
        verdict = verify_bag(recording, _prover(enclave) if enclave else None)
    if PAGE not in recording.topics.values() and not verdict.damages:
        raise RfmError(f"{bag} has no audit log; record with `rfm up --record` or `rfm record`")
    with spinner("verifying the signatures of statuses and schedules"):
        proofs = _proofs(recording, enclave, verdict) if enclave else None
    if as_json:
        print(json.dumps(_as_json(verdict) | ({"proofs": vars(proofs)} if proofs else {})))
    else:
        _show(verdict)
        for line in _told(proofs) if proofs else ():
            console.print(plain(line), soft_wrap=True)
    raise typer.Exit(1 if not verdict.is_good or (proofs and (proofs.unproven or proofs.manifest)) else 0)


def _prover(enclave: Path) -> Prove:
    """Return the verifier of pages. Raises: `ConfigurationError`."""
    with needing("security", "rfm audit verify --enclave"):
        from ros2_rfm_serving.ros.monitor.recorded import page_prover

    return page_prover(enclave)


def _proofs(recording: Bag, enclave: Path, verdict: Verdict) -> Proofs:
    """Verify the messages and the manifest. Raises: `ConfigurationError`."""
    from ros2_rfm_serving.ros.monitor.recorded import KINDS, check, check_manifest

    proofs = check(recording.messages(*KINDS), enclave)
    check_manifest(verdict.manifest, recording.ends_ns, enclave, proofs)
    return proofs


def _told(proofs: Proofs) -> Iterator[str]:
    for topic, number in sorted(proofs.unproven.items()):
        yield f"{topic}: {number} unproven, the first: {proofs.problems[topic]}"
    if proofs.manifest:
        yield f"manifest.json, and so the bytes of each file around its messages: UNPROVEN: {proofs.manifest}"
    unproven = f"; {sum(proofs.unproven.values())} UNPROVEN" if proofs.unproven else ""
    yield f"{proofs.proven} statuses and schedules are proven, {proofs.repeated} repeat one{unproven}"


def _show(verdict: Verdict) -> None:
    found, damages = verdict.chains, verdict.damages
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
    for line in _findings(verdict.findings):
        console.print(plain(line), soft_wrap=True)
    for doubt in verdict.doubts:
        console.print(plain(f"not proven: {doubt}"), soft_wrap=True)
    for note in verdict.notes:
        console.print(plain(f"note: {note}"), soft_wrap=True)
    lost = f"; {found.num_lost} were lost on the way, as the recorder noted" if found.num_lost else ""
    aside = "".join(
        f"; {count} pages were set aside: {why}"
        for count, why in ((found.num_repeats, "they came before"), (found.num_unproven, "they are not their writers'"))
        if count
    )
    records = f"{found.num_records} records of {len(found.chains)} chains"
    messages = f", {verdict.num_checked} messages" if verdict.num_checked else ""
    console.print(f"{records}{messages}: {_summary(verdict)}{lost}{aside}", soft_wrap=True)
    console.print(f"head {found.head}", soft_wrap=True)


def _summary(verdict: Verdict) -> str:
    """Return how many changes there are, apart from ends that are missing because a process was killed."""
    open_ends = sum(flaw.is_open_end for flaw in verdict.chains.flaws)
    counts = {
        "change": len(verdict.chains.flaws) - open_ends + len(verdict.findings),
        "damaged place": len(verdict.damages),
        "open end": open_ends,
    }
    if verdict.is_good:
        return "as it was written"
    found = ", ".join(counted(count, noun) for noun, count in counts.items() if count)
    return f"NOT as it was written: {found}" if verdict.is_changed else f"no change was found, but {found}"


def _findings(findings: tuple[Finding, ...]) -> Iterator[str]:
    """Yield a line for each finding; where a topic or file has many of a kind, the first of them and their number."""
    from ros2_rfm_serving.audit.findings import in_words

    counts = Counter((one.topic, one.file, one.kind) for one in findings)
    told: Counter[tuple[str, str, Kind]] = Counter()
    for one in findings:
        key = one.topic, one.file, one.kind
        told[key] += 1
        if told[key] <= MOST_OF_A_KIND:
            yield in_words(one)
        elif told[key] == MOST_OF_A_KIND + 1:
            yield f"{one.topic or one.file}: {counts[key] - MOST_OF_A_KIND} more {one.kind.value}"


def _as_json(verdict: Verdict) -> dict[str, Any]:
    found = verdict.chains
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
    named = ("writer", "run", "number", "page", "problem")
    flaws = [{**{name: getattr(flaw, name) for name in named}, "open_end": flaw.is_open_end} for flaw in found.flaws]
    findings = [
        {
            "kind": one.kind.value,
            "topic": one.topic,
            "type": one.type,
            "time_ns": one.time_ns,
            "file": one.file,
            "problem": one.problem,
        }
        for one in verdict.findings
    ]
    return {
        "head": found.head,
        "changed": verdict.is_changed,
        "records": found.num_records,
        "messages": verdict.num_checked,
        "chains": chains,
        "flaws": flaws,
        "findings": findings,
        "damages": list(verdict.damages),
        "notes": list(verdict.notes),
        "doubts": list(verdict.doubts),
        "repeats": found.num_repeats,
        "unproven_pages": found.num_unproven,
    }
