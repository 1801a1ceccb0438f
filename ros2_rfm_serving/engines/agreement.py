"""Agreement with a reference, required of reduced precision (vla.cpp §4.6): measured at the first start, and read again later."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ros2_rfm_serving import compiled
from ros2_rfm_serving.engines.base import Engine, Parity, require_parity
from ros2_rfm_serving.errors import ModelError

FOLDER = "parity"
"""Folder of the cache with a file for each model on each kind of hardware."""
_log = logging.getLogger(__name__)


def require_agreement(model: str, engine: Engine) -> None:
    """Check an engine that `must_agree` against its reference, unless an earlier check passed.

    A passed check is stored, as a reference in float64 takes minutes for a large model. A failed one is not, so that a model is
    served as soon as it agrees at a later start.

    Raises: `ModelError`, as `require_compared` does.
    """
    file = _file(engine)
    if file and _passed(file):
        return
    checks = engine.check_precision()
    require_compared(model, engine, checks)
    if file:
        _write(file, checks)


def require_compared(model: str, engine: Engine, checks: Sequence[Parity]) -> None:
    """Check that all blocks pass. checks: those of `engine`.
    Raises: `ModelError`, as `require_parity` does, and if the engine `must_agree` and nothing was compared."""
    if engine.must_agree and not checks:
        fix = "give it something to be compared with (`check_precision`, or its model a `reference()`), or serve it in float32"
        raise ModelError(f"{model!r} computes in less than float32, and nothing says that it computes what it should: {fix}")
    require_parity(model, checks)


def _file(engine: Engine) -> Path | None:
    """Return the file of the figures, or None if they are not stored.
    Its name follows from all inputs of the figures: weights and options, hardware and libraries, and the source of this package."""
    if not engine.computed_by:
        return None
    try:
        parts = (engine.contract.model_hash, engine.computed_by, compiled.folder().name)
        return compiled.own_folder(FOLDER) / f"{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}.json"
    except (OSError, RuntimeError) as error:
        _log.warning("parity is measured at every start: %s; say where figures are kept in XDG_CACHE_HOME", error)
        return None


def _passed(file: Path) -> bool:
    """Return whether the file holds exactly the text that `_write` wrote."""
    try:
        figures, _, seal = file.read_text(encoding="utf-8").partition("\n")
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        _log.warning("parity is measured again: %s: %s", file, error)
        return False
    if seal != _seal(file, figures):
        _log.warning("parity is measured again: %s is not as it was written", file)
        return False
    return True


def _write(file: Path, checks: Sequence[Parity]) -> None:
    """Write the file atomically, as another server may start meanwhile.
    Figures are for people; their seal says that they passed."""
    part = file.with_suffix(f".{os.getpid()}.{threading.get_native_id()}")
    figures = json.dumps([asdict(check) for check in checks])
    try:
        part.write_text(f"{figures}\n{_seal(file, figures)}", encoding="utf-8")
        part.replace(file)
    except OSError as error:
        _log.warning("parity will be measured again at the next start: %s", error)
        _forget(part)


def _seal(file: Path, figures: str) -> str:
    """Return the seal of figures, which also depends on the file's name, so that the file of another model does not match."""
    return hashlib.sha256(f"{file.stem}\n{figures}".encode()).hexdigest() + "\n"


def _forget(part: Path) -> None:
    try:
        part.unlink(missing_ok=True)
    except OSError:  # where nothing can be written, nothing can be removed
        _log.debug("%s stays", part)
