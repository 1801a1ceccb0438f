"""Recorded form of a server's decision core at one instant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ros2_rfm_serving.audit import codec
from ros2_rfm_serving.errors import RfmError, UnrecordableError
from ros2_rfm_serving.server import ServerConfig, ServerCore
from ros2_rfm_serving.server.engine_queues import EngineLimits
from ros2_rfm_serving.types import ModelContract

PARTS = ("config", "contract", "limits", "state")
"""Keys of a snapshot; each is null where no model is loaded."""
UNRECORDABLE = "unrecordable"
"""Key of the reason why a snapshot has no state."""
NO_MODEL: Mapping[str, Any] = dict.fromkeys(PARTS)

State = Mapping[str, Any] | UnrecordableError
"""State of a core, or the reason why it has none that can be recorded."""


def state_of(core: ServerCore) -> State:
    """Return the state of a core, which shares no mutable part with it."""
    try:
        return core.state()
    except UnrecordableError as error:
        return error


def described(config: ServerConfig, contract: ModelContract, limits: Sequence[EngineLimits]) -> dict[str, Any]:
    """Return what `ServerCore.from_state` needs beside a state, for JSON."""
    return {"config": codec.plain(config), "contract": codec.plain(contract), "limits": codec.plain(tuple(limits))}


def encoded(state: State) -> dict[str, Any]:
    """Return the keys of a snapshot that have the state, for JSON: `state`, and where it cannot be recorded, the reason."""
    if isinstance(state, UnrecordableError):
        return {"state": None, UNRECORDABLE: str(state)}
    try:
        return {"state": codec.plain(state)}
    except TypeError as error:  # of a foreign policy
        return {"state": None, UNRECORDABLE: str(error)}


def snapshot_of(core: ServerCore) -> dict[str, Any]:
    """Return the keys of a snapshot of a core, for JSON."""
    return {**described(core.config, core.contract, core.limits), **encoded(state_of(core))}


def restored(snapshot: Mapping[str, Any]) -> ServerCore | None:
    """Return the core of a snapshot record; None: no model was loaded.
    Raises: `RfmError` for a snapshot without a state, and for values that this version does not record."""
    if UNRECORDABLE in snapshot:
        raise RfmError(str(snapshot[UNRECORDABLE]))
    if all(name in snapshot and snapshot[name] is None for name in PARTS):
        return None
    config, contract, limits, state = (codec.value(snapshot.get(name)) for name in PARTS)
    if not (isinstance(config, ServerConfig) and isinstance(contract, ModelContract) and isinstance(state, dict)):
        raise RfmError("it is no snapshot of a server")
    if not isinstance(limits, tuple) or not all(isinstance(each, EngineLimits) for each in limits):
        raise RfmError("it is no snapshot of a server: `limits` has no limits of engines")
    return ServerCore.from_state(config, contract, limits, state)
