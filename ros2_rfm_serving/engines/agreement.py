"""No reduced precision is served unchecked (vla.cpp §4.6): measured at the first start, read again at the next ones."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ros2_rfm_serving import compiled
from ros2_rfm_serving.engines.base import Engine, Parity, require_parity

FOLDER = "parity"
"""Of the cache: a file for each model on each kind of hardware."""
_log = logging.getLogger(__name__)


def require_agreement(model: str, engine: Engine) -> None:
    """Of an engine that `must_agree`. What passes is kept: of a large model a reference in float64 takes minutes. What fails
    is not: nothing keeps a model from being served that agrees when it is tried again.

    Raises: `ModelError`, as `require_parity` does.
    """
    file = _file(engine)
    if file and (kept := _read(file)):
        require_parity(model, kept)
        return
    checks = engine.check_precision()
    require_parity(model, checks)
    if file and checks:
        _write(file, checks)


def _file(engine: Engine) -> Path | None:
    """None: nothing is kept. Named after all that the figures follow from: weights and options, hardware and PyTorch's release, and
    the very source of this package."""
    if not engine.computed_by:
        return None
    try:
        parts = (engine.contract.model_hash, engine.computed_by, compiled.folder().name)
        return compiled.own_folder(FOLDER) / f"{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}.json"
    except (OSError, RuntimeError) as error:
        _log.warning("parity is measured at every start: %s; say where figures are kept in XDG_CACHE_HOME", error)
        return None


def _read(file: Path) -> list[Parity]:
    """Empty: not there, or not what `_write` writes."""
    try:
        return [Parity(**{**check, "error": float(check["error"])}) for check in json.loads(file.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        _log.warning("parity is measured again: %s: %s", file, error)
        return []


def _write(file: Path, checks: Sequence[Parity]) -> None:
    """All of it or nothing: another server may start meanwhile."""
    part = file.with_suffix(f".{os.getpid()}")
    try:
        part.write_text(json.dumps([asdict(check) for check in checks]) + "\n", encoding="utf-8")
        part.replace(file)
    except OSError as error:
        part.unlink(missing_ok=True)
        _log.warning("parity will be measured again at the next start: %s", error)
