"""What a client sees of vLLM-Omni's own code, and the signatures of it that a client depends on, for tests of the fake.

python -m test.ros.vllm_omni.record PYTHON VLLM_OMNI_CHECKOUT REVISION > test/ros/vllm_omni/bfaaa3c2.json

PYTHON: of an environment as `source.py` needs it.
"""

from __future__ import annotations

import ast
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .fake import PATH
from .seen import seen, seen_at_the_end, seen_without_a_policy

RECORD = Path(__file__).parent / "bfaaa3c2.json"
IDLE_S = 1.0
ENDS = {"killed": signal.SIGKILL, "ended": signal.SIGTERM}


@contextlib.contextmanager
def running(python: str, checkout: Path, idle_s: float = IDLE_S) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Its address and process."""
    command = [python, str(Path(__file__).parent / "source.py"), str(checkout), str(idle_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"ws://127.0.0.1:{int(process.stdout.readline())}", process
        finally:
            process.kill()


def recorded(python: str, checkout: Path, revision: str) -> dict[str, Any]:
    told: dict[str, Any] = {"revision": revision, "signatures": signatures(checkout)}
    with running(python, checkout) as (url, _):
        told["seen"] = seen(url + PATH)
        told["without a policy"] = seen_without_a_policy(f"{url}/none{PATH}")
    for name, number in ENDS.items():
        with running(python, checkout) as (url, process):
            told[name] = seen_at_the_end(url + PATH, lambda process=process, number=number: process.send_signal(number))
    return told


def signatures(checkout: Path) -> dict[str, str]:
    """Of the functions and constants that decide what is sent; bodies too where they are the protocol itself."""
    tree = ast.parse((checkout / "vllm_omni/entrypoints/openpi/connection.py").read_text())
    found = {ast.unparse(node.targets[0]): ast.unparse(node.value) for node in tree.body if isinstance(node, ast.Assign)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = ast.unparse(node.args)
    return found


if __name__ == "__main__":
    print(json.dumps(recorded(sys.argv[1], Path(sys.argv[2]), sys.argv[3]), indent=1))
