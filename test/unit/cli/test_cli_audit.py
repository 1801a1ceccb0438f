"""`rfm audit verify` and `rfm replay` of a recording on disk: what they print, and their exit codes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ros2_rfm_serving.audit.bag_writer import BagWriter
from ros2_rfm_serving.audit.chain import Page
from ros2_rfm_serving.audit.recording.ledger import Ledger
from ros2_rfm_serving.cli.main import app
from test.unit.audit import recorded
from test.unit.audit.recordings import recorded_world, rewritten, run

PAGE = "rfm_serving/msg/AuditPage"
Written = Callable[[list[Page]], Path]


@pytest.fixture(scope="module")
def pages() -> list[Page]:
    """Of a robot, and of whoever recorded it."""
    world, recorder = recorded_world()
    run(world, recorder, 12)
    recorder.journal.close(world.now_s, "the end of the process")
    return with_recorder(recorder.pages)


def with_recorder(pages: list[Page]) -> list[Page]:
    ledger = Ledger("one", 99, 0.0, {})
    for page in pages:
        ledger.hear(page, 1.0)
    end = ledger.page(9.0, 9.0, closed=True)
    assert end is not None
    return [*pages, end]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    def write(pages: list[Page]) -> Path:
        writer = BagWriter(tmp_path / "bag")
        for number, page in enumerate(pages):
            writer.write(f"/{page.writer}/audit", PAGE, recorded.definition(PAGE), recorded.page(page), 10**18 + number)
        writer.close()
        return tmp_path / "bag"

    return write


def rfm(*arguments: str, code: int) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=True)
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def test_a_recording_is_as_it_was_written_and_decides_the_same(pages: list[Page], written: Written) -> None:
    bag = str(written(pages))
    told = rfm("audit", "verify", bag, code=0)
    assert "robot/r1" in told and "as it was written" in told and "head " in told
    found = json.loads(rfm("audit", "verify", bag, "--json", code=0))
    assert not found["flaws"] and len(found["chains"]) == 2 and f"head {found['head']}" in told
    told = rfm("replay", bag, code=0)
    assert "the same" in told and "times real time" in told
    (chain,) = json.loads(rfm("replay", bag, "--robot", "r1", "--json", code=0))["chains"]
    assert chain["decisions"] > 200 and chain["snapshots"] == 1 and chain["difference"] is None


def test_a_record_that_was_changed_is_named(pages: list[Page], written: Written) -> None:
    lines = list(pages[5].lines)
    lines[1] = lines[1].replace(b'"may_act":true', b'"may_act":!!!!')
    assert lines[1] != pages[5].lines[1]
    changed = Page(writer="robot/r1", run=pages[5].run, first=pages[5].first, previous=pages[5].previous, lines=tuple(lines))
    bag = str(written([*pages[:5], changed, *pages[6:]]))
    told = rfm("audit", "verify", bag, code=1)
    assert f"record {pages[5].first + 1}, page 5: it was changed" in told
    assert "see `rfm audit verify`" in rfm("replay", bag, code=2)


def test_another_decision_is_shown_with_both_sides(pages: list[Page], written: Written) -> None:
    def change(found: list[dict]) -> None:
        next(one for one in found if one["kind"] == "tick" and one["requests"])["requests"][0]["inference_delay_steps"] = 77

    told = rfm("replay", str(written(with_recorder(rewritten(pages[:-1], change)))), code=1)
    assert "another decision" in told and "requests[0].inference_delay_steps" in told
    assert "recorded: 77" in told and "replayed: " in told and "2001-09-09T" in told


def test_a_chain_that_began_anew_is_named_and_is_not_all_well(written: Written) -> None:
    world, recorder = recorded_world()
    run(world, recorder, 4)
    world.brain.snapshot = lambda: {"hat": object()}  # type: ignore[method-assign]
    recorder.journal.listeners(2, world.now_s)  # a snapshot, which cannot be recorded
    run(world, recorder, 2)
    del world.brain.snapshot  # type: ignore[method-assign]
    run(world, recorder, 4)
    recorder.journal.close(world.now_s, "the end of the process")
    bag = str(written(with_recorder(recorder.pages)))
    for told in (rfm("audit", "verify", bag, code=1), rfm("replay", bag, code=2)):
        assert "robot/r1" in told and "the recording failed: TypeError: builtins.object cannot be recorded" in told
    chains = json.loads(rfm("replay", bag, "--json", code=2))["chains"]
    assert len(chains) > 1 and all(chain["broke_off"] for chain in chains) and all(chain["difference"] is None for chain in chains)


@pytest.mark.parametrize("verb", [("audit", "verify"), ("replay",)])
def test_what_is_no_recording_is_said(tmp_path: Path, verb: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*verb, str(tmp_path)])
    assert done.exit_code != 0 and str(tmp_path) in str(done.exception)


IMPATIENT = """
import sys
from ros2_rfm_serving.operate import progress

progress.SHOWN_AFTER_S = -1.0
from ros2_rfm_serving.cli.main import app

bag, folder = sys.argv[1:]
for verb in (["audit", "verify"], ["audit", "safety"], ["audit", "report", "-o", f"{folder}/page.html"], ["replay"]):
    app([*verb, bag], standalone_mode=False)
app(["audit", "explain", bag, "--robot", "r1", "--at", "0.0"], standalone_mode=False)
"""


def test_every_verb_that_reads_a_recording_shows_progress_on_a_terminal(
    pages: list[Page], written: Written, tmp_path: Path
) -> None:
    terminal, process_end = pty.openpty()
    command = [sys.executable, "-W", "ignore", "-c", IMPATIENT, str(written(pages)), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=process_end, text=True) as process:
        os.close(process_end)
        shown = _until_closed(terminal)
        printed = process.communicate(timeout=120)[0]
    for text in (
        "verifying chains",
        "checking every control period",
        "explaining its incidents",
        "replaying",
        "explaining the moment",
    ):
        assert text in shown, (text, shown[-2000:], printed[-2000:])
    assert "verifying chains" not in printed, "what a program reads has no progress in it"


def _until_closed(terminal: int) -> str:
    parts: list[bytes] = []
    try:
        while part := os.read(terminal, 1 << 16):
            parts.append(part)
    except OSError:  # the last process at the other end has ended
        pass
    finally:
        os.close(terminal)
    return b"".join(parts).decode(errors="replace")
