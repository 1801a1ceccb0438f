"""The model behind either server: it answers with what it was asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

ANNOUNCED = {"action_horizon": 4, "needs_session_id": True, "image_resolution": [8, 8]}
"""As a model's `policy_server_config`."""


def actions(observation: Mapping[str, Any], session_id: str, reset: bool) -> Any:
    """[4, 2]: the first number of the state, and whether the model was told to begin anew; as named chunks where it came nested.

    Raises: `RuntimeError` where the instruction is "fail".
    """
    if observation.get("prompt") == "fail":
        raise RuntimeError("secret of the server's")
    state = observation["state"]
    nested = isinstance(state, dict)
    value = float(state["arm"][0, -1, 0] if nested else state[0])
    rows = np.tile(np.float32([value, float(reset)]), (4, 1))
    return {"arm": rows[None, :, :1], "hand": rows[None, :, 1:]} if nested else rows
