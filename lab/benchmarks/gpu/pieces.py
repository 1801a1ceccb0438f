"""Pieces of `rfm bench gpu`, by value: each is a process of its own, under ten minutes, done once, with its expected seconds."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lab.benchmarks.gpu.machine import Machine, Size
from ros2_rfm_serving.engines.architectures.names import ARCHITECTURES

LIMIT_S = 570.0
"""Time after which a piece is ended."""
ENOUGH = 0.6
"""Share of it after which a piece begins no new part, and continues in a new process."""
FIRST_TESTS, LATER_TESTS = ("graphs", "failures", "streams"), ("memory", "uploads")
"""Files `test/gpu/test_*.py`: figures of a machine on which the first ones fail are invalid."""
MODES = ("eager", "graphs", "compiled", "served")
"""Modes of execution; `served`: compiled and recorded, as on a server with a GPU."""
KERNELS = ("compiled", "served")
"""Modes whose kernels are compiled, for minutes each."""
PROFILED = ("pi05", "groot_n1_7", "smolvla", "groot_n1_6")
"""Profiled architectures: the last one is of ROSA's figures; the first three come before everything but tests."""
COMPARED = ("groot_n1_7", "pi05")
"""Architectures whose ratios have goals (`goals.py`)."""
BATCHED = ("pi05", "groot_n1_6", "smolvla")
"""Architectures with batching: the first one is measured early, at one load."""
STAGED = ("pi05", "flow")
TEXTS: Mapping[Size, tuple[str, ...]] = {"full": ("qwen2_5_vl_7b", "qwen2_5_vl_3b"), "toy": ("qwen2_5_vl_3b",)}
"""Text models with a profile of their own: ROSA's two, or a tiny one."""
CHILD = ("-m", "ros2_rfm_serving.checkout", "lab.benchmarks.gpu.child")
"""Interpreter arguments of a piece."""

EXPECTED_S: Mapping[Size, Mapping[str, float]] = {
    "full": {
        "tests": 30,
        "tests-graphs": 60,
        "tests-memory": 60,
        "tests-compile": 150,
        "tests-vllm": 90,
        "profile": 140,
        "ratios": 50,
        "served": 80,
        "batching": 420,
        "batching-pi05": 120,
        "beside": 45,
        "speed": 30,
        "compiled": 240,
        "stages": 65,
        "arrivals": 280,
        "text": 240,
        "plan": 120,
        "rosa": 300,
    },
    "toy": {
        "tests": 9,
        "tests-compile": 25,
        "tests-vllm": 6,
        "profile": 10,
        "ratios": 8,
        "served": 10,
        "batching": 12,
        "beside": 5,
        "speed": 8,
        "speed-smolvla": 60,
        "stages": 6,
        "text": 8,
        "plan": 10,
        "rosa": 10,
    },
}
"""Expected seconds of a piece, or of all pieces of that kind. Full sizes: estimates for one H100 or H200, which a run corrects by
measurements; toys: CPU time of one core."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    name: str
    work: tuple[str, ...]
    """Work of `child.py` with its subjects."""
    limit_s: float = LIMIT_S
    expected_s: float = 0.0
    """Expected seconds before any measurement on the machine (`budget.py`)."""
    python: str = sys.executable
    needs: tuple[str, ...] = ()
    """Pieces whose results it needs."""
    measures: bool = True
    """Whether it measures; False: it computes from results, on any machine."""
    environment: Mapping[str, str] = field(default_factory=dict)

    def command(self, machine: Machine, out: Path) -> list[str]:
        given = ["--machine", json.dumps(machine.columns()), "--out", str(out), "--seconds", str(ENOUGH * self.limit_s)]
        return [self.python, *CHILD, self.name, *given, *self.work]


def pieces(size: Size, vllm_python: str = "") -> list[Piece]:
    """Return them in the order in which they run. vllm_python: an interpreter that has vLLM."""
    spoken = vllm_python or sys.executable
    return [
        *(_piece(size, f"tests-{name}", "tests", name) for name in FIRST_TESTS),
        *(_piece(size, f"profile-{name}", "profile", name) for name in PROFILED[:-1]),
        *(_piece(size, f"ratios-{name}", "ratios", name) for name in COMPARED),
        *(_piece(size, f"served-{name}", "served", name) for name in COMPARED),
        _piece(size, f"batching-{BATCHED[0]}", "batching", BATCHED[0]),
        _piece(size, f"beside-{BATCHED[0]}", "beside", BATCHED[0]),
        *_speeds(size),
        *(_piece(size, f"stages-{name}", "stages", name) for name in STAGED),
        *(_piece(size, f"tests-{name}", "tests", name) for name in LATER_TESTS),
        _piece(size, f"profile-{PROFILED[-1]}", "profile", PROFILED[-1]),
        *(_piece(size, f"profile-{name}", "text", name, python=spoken) for name in TEXTS[size]),
        _piece(size, "tests-vllm", "tests", "vllm", python=spoken),
        *(_piece(size, f"{kind}-{name}", kind, name) for name in BATCHED[1:] for kind in ("batching", "beside")),
        *_more(size),
        _piece(size, "tests-compile", "tests", "compile"),
        *_kernels(size),
        _piece(size, "plan", "plan", needs=("profile-groot_n1_7",), measures=False),
        _piece(size, "rosa", "rosa", needs=("profile-groot_n1_7",), measures=False),
    ]


def _piece(
    size: Size,
    name: str,
    *work: str,
    kind: str = "",
    python: str = sys.executable,
    needs: tuple[str, ...] = (),
    measures: bool = True,
) -> Piece:
    """Return a piece. kind: of its expected seconds, if that is not its work."""
    known = EXPECTED_S[size]
    expected_s = known.get(name, known.get(kind or work[0], 0.0))
    return Piece(name=name, work=work, expected_s=expected_s, python=python, needs=needs, measures=measures)


def _speeds(size: Size) -> Iterator[Piece]:
    """Yield the pieces of speed; at toy size with all modes, because the start of a process takes most of its time."""
    modes = MODES if size == "toy" else tuple(mode for mode in MODES if mode not in KERNELS)
    for name in ARCHITECTURES:
        yield _piece(size, f"speed-{name}", "speed", name, *modes)


def _more(size: Size) -> Iterator[Piece]:
    """Yield other loads and arrivals of the same measurements; a toy's would show nothing new."""
    if size == "full":
        yield _piece(size, f"batching-{BATCHED[0]}-loads", "batching", BATCHED[0], "all", kind="batching")
        for name in PROFILED:
            yield _piece(size, f"profile-{name}-arrivals", "profile", name, "all", kind="arrivals")


def _kernels(size: Size) -> Iterator[Piece]:
    if size == "full":
        for name in ARCHITECTURES:
            yield _piece(size, f"speed-{name}-compiled", "speed", name, *KERNELS, kind="compiled")
