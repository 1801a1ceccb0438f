"""Base class of engines that must agree with a reference if they compute in less than float32."""

from __future__ import annotations

from typing import Any

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.precision import REDUCED


class ReducedPrecisionEngine(Engine):
    """Engine whose model, or which itself, may define `weights_dtype` and `computed_by` (its options and hardware)."""

    @property
    def must_agree(self) -> bool:
        """True if the weights have reduced precision. Such an engine is not served without a reference."""
        return getattr(self._computes, "weights_dtype", None) in REDUCED

    @property
    def computed_by(self) -> str:
        return str(getattr(self._computes, "computed_by", ""))

    @property
    def _computes(self) -> Any:
        return getattr(self, "_model", self)
