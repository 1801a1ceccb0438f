"""The model catalogue, `profiles/models.yaml`: which engine runs a model, from where, what it needs, and who says so."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.factory import yaml_source
from ros2_rfm_serving.factory.yaml_source import did_you_mean


class Footprint(BaseModel):
    """What a model takes on one type of GPU."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    memory_gb: float = Field(gt=0)
    load_s: float = Field(ge=0)
    source: str
    """Where the numbers come from."""


class CatalogueEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    engine: str
    """`bundle` (an embedded model) or `emulated` (latency from a profile; nothing runs)."""
    bundle: str = ""
    """Folder below models/, for `bundle`."""
    output: str = Field(default="action_chunk", pattern="^(action_chunk|judgement|plan)$")
    action_names: tuple[str, ...] = ()
    """Of an emulated action model."""
    cameras: tuple[str, ...] = ()
    """That an emulated model asks for."""
    state_size: int = Field(default=0, ge=0)
    """That an emulated model asks for."""
    chunk_length: int = Field(default=16, ge=1)
    """Of an emulated action model, control steps."""
    gpus: dict[str, Footprint] = {}


class Catalogue(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    models: dict[str, CatalogueEntry]

    def __getitem__(self, model: str) -> CatalogueEntry:
        """Raises: `ModelError` for a model that nobody has described."""
        if model not in self.models:
            raise ModelError(f"model {model!r} is not in the catalogue; {did_you_mean(model, self.models)}")
        return self.models[model]

    @staticmethod
    def load(file: Path) -> Catalogue:
        source = yaml_source.read(file)
        return source.validate(Catalogue, (), source.data)
