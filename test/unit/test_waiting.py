"""What tests wait with: a machine that stood still has not had the time that passed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from test.ports import free_port
from test.waiting import eventually, watch


class Machine:
    """Stands still now and then."""

    def __init__(self, *turns_s: float) -> None:
        self.now_s, self.turns, self._turns_s = 0.0, 0, list(turns_s)

    def turn(self) -> None:
        self.turns += 1
        self.now_s += self._turns_s.pop(0) if self._turns_s else 0.05


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(0.05, 30.0, 0.05)
    monkeypatch.setattr(time, "monotonic", lambda: made.now_s)
    return made


def test_what_comes_true_after_a_standstill_is_seen(machine: Machine) -> None:
    assert eventually(lambda: machine.turns == 10, 2.0, machine.turn)
    assert not eventually(lambda: machine.turns == 1000, 2.0, machine.turn)


def test_what_came_during_a_standstill_has_its_turns(machine: Machine) -> None:
    watch(1.0, machine.turn)
    assert machine.turns >= 19


def test_a_port_is_given_once_whoever_asks(repository: Path) -> None:
    ask = "from test.ports import free_port; print(*(free_port() for _ in range(300)), flush=True); input()"
    command = [sys.executable, "-c", ask]
    others = [subprocess.Popen(command, cwd=repository, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    given = [port for other in others for port in other.stdout.readline().split()]  # type: ignore[union-attr]
    given += [str(free_port()) for _ in range(300)]
    for other in others:
        other.communicate("\n")
    assert len(given) == len(set(given)) == 900
