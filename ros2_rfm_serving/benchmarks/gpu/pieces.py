"""What `make gpu` is made of: each piece a process of its own, under ten minutes, done once."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ros2_rfm_serving.benchmarks.gpu.machine import Machine, Size
from ros2_rfm_serving.engines.architectures.names import ARCHITECTURES

LIMIT_S = 570.0
"""After which a piece is ended."""
ENOUGH = 0.6
"""Share of it after which a piece begins nothing new, and goes on in a process anew."""
TESTS = ("graphs", "compile", "streams", "uploads", "memory", "failures")
"""`test/gpu/test_*.py`"""
MODES = ("eager", "compiled", "graphs", "served")
"""`served`: compiled and recorded, as a server does it on a GPU"""
BATCHED = ("groot_n1_6", "pi05", "smolvla")
STAGED = ("flow", "pi05")
PROFILED = ("groot_n1_6", "pi05", "smolvla")
TEXTS: Mapping[Size, tuple[str, ...]] = {"full": ("qwen2_5_vl_7b", "qwen2_5_vl_3b"), "toy": ("qwen2_5_vl_3b",)}
"""Text models with a profile of their own: ROSA's two, or a tiny one"""
_HERE = "ros2_rfm_serving.benchmarks.gpu.child"


@dataclass(frozen=True, kw_only=True)
class Piece:
    name: str
    work: tuple[str, ...]
    """What `child.py` does, and of what."""
    limit_s: float = LIMIT_S
    python: str = sys.executable
    needs: tuple[str, ...] = ()
    """Pieces without whose results it has nothing to work on."""
    environment: Mapping[str, str] = field(default_factory=dict)

    def command(self, machine: Machine, out: Path) -> list[str]:
        where = ["--device", machine.device, "--size", machine.size, "--out", str(out), "--seconds", str(ENOUGH * self.limit_s)]
        return [self.python, "-m", _HERE, self.name, *where, *self.work]


def pieces(size: Size, vllm_python: str = "") -> list[Piece]:
    """In the order in which they run: what is wrong with a machine shows first. vllm_python: an interpreter that has vLLM."""
    return [
        *(Piece(name=f"tests-{name}", work=("tests", name)) for name in TESTS),
        Piece(name="tests-vllm", work=("tests", "vllm"), python=vllm_python or sys.executable),
        *_benchmarks(size),
        *(Piece(name=f"profile-{name}", work=("text", name), python=vllm_python or sys.executable) for name in TEXTS[size]),
        Piece(name="plan", work=("plan",), needs=tuple(f"profile-{name}" for name in PROFILED)),
        Piece(name="rosa", work=("rosa",), needs=("profile-groot_n1_6",)),
    ]


def _benchmarks(size: Size) -> Iterator[Piece]:
    for name in ARCHITECTURES:
        if size == "toy":  # for which most of a process is its start
            yield Piece(name=f"speed-{name}", work=("speed", name, *MODES))
        else:
            yield from (Piece(name=f"speed-{name}-{mode}", work=("speed", name, mode)) for mode in MODES)
    for name in BATCHED:
        yield Piece(name=f"batching-{name}", work=("batching", name))
    for name in BATCHED:
        yield Piece(name=f"beside-{name}", work=("beside", name))
    for name in STAGED:
        yield Piece(name=f"stages-{name}", work=("stages", name))
    for name in PROFILED:
        yield Piece(name=f"profile-{name}", work=("profile", name))
