"""Every entry of docs/runbook.md: its cause is made with real processes, its command runs as printed, and says what is printed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from domain_coordinator import domain_id

from test.system.test_clocks import WallClock

from .causes import MAKES
from .entries import entries, plain
from .floor import Floor

ENTRIES = entries()
LINGERING = {"clock step"}
"""People are told of it for minutes: it may come after what is looked for."""


@pytest.fixture(scope="module")
def floor(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Floor]:
    """One for all causes, each of which is mended before the next."""
    folder = tmp_path_factory.mktemp("floor")
    with domain_id() as domain, pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "ROS_DOMAIN_ID", str(domain))
        made = Floor(repository, folder, WallClock(folder))
        try:
            made.open()
            yield made
        finally:
            made.close()


def causes(output: str) -> list[str]:
    return re.findall(r"^\d+\. ([^:\n]+)", output, flags=re.MULTILINE)


def says(entry_lines: tuple[str, ...], output: str, folder: Path) -> None:
    """folder: of the floor, which the runbook leaves out."""
    said = [plain(line) for line in output.replace(f"{folder}/", "").splitlines()]
    assert not [line for line in entry_lines if plain(line) not in said], output


@pytest.mark.timeout(600)
def test_of_a_healthy_factory_nothing_is_said(floor: Floor) -> None:
    floor.watch(5.0)
    done = floor.shell(ENTRIES[""].command)
    assert done.returncode == 0 and causes(done.stdout) == [], done.stdout + done.stderr
    says(ENTRIES[""].says, done.stdout, floor.folder)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cause", MAKES)
def test_the_command_names_the_cause(floor: Floor, cause: str) -> None:
    entry = ENTRIES[cause]
    with MAKES[cause](floor):
        done = floor.shell(entry.command)
    print(done.stdout)
    found = causes(done.stdout)
    assert done.returncode == 1 and found[0] == cause and set(found[1:]) <= LINGERING, done.stdout + done.stderr
    says(entry.says, done.stdout, floor.folder)


@pytest.mark.timeout(600)
def test_mended_it_is_healthy_again(floor: Floor) -> None:
    """But for what people are told of for a while."""
    floor.streams()
    done = floor.shell("rfm why")
    assert set(causes(done.stdout)) <= {"clock step", "two factories in one domain"}, done.stdout
