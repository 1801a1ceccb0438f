"""Who is held against a reference before it is served: whatever computes in less than float32."""

from __future__ import annotations

from typing import Any

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.engines.precision import REDUCED


class Rounded(Engine):
    """Its model, or where it has none itself, may say `weights_dtype` and by which options and hardware it computes."""

    @property
    def must_agree(self) -> bool:
        """Whether there is a reference or not: without one it is not served."""
        return getattr(self._computes, "weights_dtype", None) in REDUCED

    @property
    def computed_by(self) -> str:
        return str(getattr(self._computes, "computed_by", ""))

    @property
    def _computes(self) -> Any:
        return getattr(self, "_model", self)
