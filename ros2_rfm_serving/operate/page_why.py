"""`rfm why` for a dashboard page: the causes of problems of one robot, one server, or the whole factory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ros2_rfm_serving.operate.own_command import run_rfm
from ros2_rfm_serving.security.own import ENCLAVE

WRONG_CODE = 1
"""Exit code of `rfm why` when it finds a problem."""


def causes_of(name: str, namespace: str, enclave: Path | None) -> dict[str, Any]:
    """Return the JSON of `rfm why`, or `problem` with the reason why there is none.
    name: empty for the whole factory. enclave: verifies statuses where the environment names none."""
    arguments = ["why", *([name] if name else []), "--json", *(["--namespace", namespace] if namespace else [])]
    done = run_rfm(arguments, {ENCLAVE: str(enclave)} if enclave else {})
    if done.returncode not in (0, WRONG_CODE):
        return {"problem": done.stderr.strip() or f"rfm why ended with the code {done.returncode}"}
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"problem": "rfm why gave no JSON"}
    return found
