"""What every section of a descriptor has in common."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """YAML reads `yes` and `on` as true, which would be 1: a millisecond, a robot, a ROS domain."""
        if isinstance(value, bool) and not _takes_truth(cls.model_fields[str(info.field_name)].annotation):
            raise ValueError("is a truth value to YAML: write a number, or a text in quotes")
        return value


def _takes_truth(annotation: Any) -> bool:
    return annotation in (bool, Any, object) or any(map(_takes_truth, get_args(annotation)))
