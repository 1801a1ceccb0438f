"""The model catalogue, `profiles/models.yaml`: which engine runs a model, from where, what it needs, and who says so."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.factory import yaml_source
from ros2_rfm_serving.factory.yaml_source import did_you_mean
from ros2_rfm_serving.profiles.service import ContinuousService, FixedService, ServiceLaw, SteppedService, Wave

AT_START = "at_start"


class Steps(BaseModel):
    """What of the fixed law of an action model is perception; the rest of it is solver steps, all alike. So both laws of the model
    agree: a batch that nothing joins takes the same."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    num_steps: int = Field(ge=1)
    """Of the solver, from perception to answer."""
    perception_base_ms: float = Field(ge=0)
    """Of `base_ms`."""
    perception_per_row_ms: float = Field(ge=0)
    """Of `per_row_ms`."""
    sizes: tuple[int, ...] = ()
    """Shapes of a perception and of a step, rising; none: `batch_sizes`. There may be more of them: a step is captured once, not
    once for each of a batch's."""


def _check_rising(name: str, sizes: tuple[int, ...]) -> None:
    if not sizes or sizes[0] < 1 or any(low >= high for low, high in pairwise(sizes)):
        raise ValueError(f"{name} is {list(sizes)}; it must be a rising list of whole numbers from 1")


class WaveStep(BaseModel):
    """A step in the time over the rows (`profiles.service.Wave`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    from_rows: int = Field(ge=1)
    extra_rows: float = Field(ge=0)
    """That it is worth, of `per_row_ms` each."""


class Service(BaseModel):
    """How long an emulated model takes. `profiles/service.py` has the laws."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    batching: Literal["fixed", "continuous"]
    base_ms: float = Field(gt=0)
    """Of every batch, or of every request that is alone."""
    per_row_ms: float | None = Field(default=None, ge=0)
    """Fixed: added by every row of the batch size."""
    batch_sizes: tuple[int, ...] = (1,)
    """Fixed: that the model has been compiled for, rising."""
    wave: WaveStep | None = None
    """Fixed: from some rows on a batch takes longer than the line says; None: it does not."""
    steps: Steps | None = None
    """Fixed: it can also batch continuously, one solver step at a time; None: it cannot."""
    per_request_ms: float | None = Field(default=None, gt=0)
    """Continuous: added by every request in service."""
    max_concurrent: int = Field(default=256, ge=1)
    """Continuous: requests in service at once."""
    jitter: float = Field(default=0.05, ge=0, le=1)
    """Relative standard deviation."""

    @model_validator(mode="after")
    def _keys_fit_the_batching(self) -> Service:
        fixed, continuous = {"per_row_ms", "batch_sizes", "steps", "wave"}, {"per_request_ms", "max_concurrent"}
        foreign = self.model_fields_set & (continuous if self.batching == "fixed" else fixed)
        if foreign:
            raise ValueError(f"{self.batching} batching has no {', '.join(sorted(foreign))}")
        needed = "per_row_ms" if self.batching == "fixed" else "per_request_ms"
        if getattr(self, needed) is None:
            raise ValueError(f"{needed} is missing: {self.batching} batching needs it")
        _check_rising("batch_sizes", self.batch_sizes)
        _check_rising("steps.sizes", self.steps.sizes if self.steps and self.steps.sizes else (1,))
        if self.steps and not (
            self.steps.perception_base_ms < self.base_ms and self.steps.perception_per_row_ms <= (self.per_row_ms or 0.0)
        ):
            raise ValueError("steps has more perception than base_ms and per_row_ms are in all: it says what part of them is")
        return self

    def _wave(self) -> Wave:
        return Wave(from_rows=self.wave.from_rows, extra_rows=self.wave.extra_rows) if self.wave else Wave()

    def law(self) -> ServiceLaw:
        if self.batching == "fixed":
            per_row_s = (self.per_row_ms or 0.0) / 1e3
            return FixedService(base_s=self.base_ms / 1e3, per_row_s=per_row_s, jitter=self.jitter, wave=self._wave())
        return ContinuousService(
            base_s=self.base_ms / 1e3,
            per_request_s=(self.per_request_ms or 0.0) / 1e3,
            jitter=self.jitter,
            max_concurrent=self.max_concurrent,
        )

    def stepped_law(self) -> SteppedService | None:
        """One solver step at a time; None: nobody has said."""
        steps = self.steps
        if steps is None:
            return None
        return SteppedService(
            perception_base_s=steps.perception_base_ms / 1e3,
            perception_per_row_s=steps.perception_per_row_ms / 1e3,
            step_base_s=(self.base_ms - steps.perception_base_ms) / steps.num_steps / 1e3,
            step_per_row_s=((self.per_row_ms or 0.0) - steps.perception_per_row_ms) / steps.num_steps / 1e3,
            num_steps=steps.num_steps,
            sizes=steps.sizes or self.batch_sizes,
            jitter=self.jitter,
            wave=self._wave(),
        )


class Footprint(BaseModel):
    """What a model takes on one type of GPU."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    memory_gb: float = Field(gt=0)
    load_s: float = Field(ge=0)
    source: str
    """Where the numbers come from."""
    service: Service | None = None
    """How long an emulated model takes on this GPU; without it, as its latency profile says."""
    derivation: str = ""
    """How published figures led to `service`."""

    @model_validator(mode="after")
    def _a_law_says_where_it_comes_from(self) -> Footprint:
        if self.service and not self.derivation.strip():
            raise ValueError("derivation is missing: say how published figures led to `service`")
        return self


class CatalogueEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    engine: str
    """By name (engines/registry.py): `bundle` (an embedded model), `lerobot`, `jax`, `vllm`, `openai`, `remote`, `emulated` (it
    takes the time of its service law or profile; nothing runs), an entry point, or `package.module:function`."""
    options: dict[str, Any] = {}
    """Of the engine, which checks them."""
    bundle: str = ""
    """Folder for `bundle`: beside the catalogue, or below models/."""
    parity: Literal["on_request", "at_start"] = "on_request"
    """`at_start`: its servers hold it against its reference, block by block, and do not serve it when it is further off than it may
    be; `on_request`: `rfm parity` does."""
    output: str = Field(default="action_chunk", pattern="^(action_chunk|judgement|plan)$")
    action_names: tuple[str, ...] = ()
    """Of an emulated action model."""
    cameras: tuple[str, ...] = ()
    """That an emulated model asks for."""
    state_size: int = Field(default=0, ge=0)
    """That an emulated model asks for."""
    chunk_length: int = Field(default=16, ge=1)
    """Of an emulated action model, control steps."""
    size_b: float | None = Field(default=None, gt=0)
    """Billions of parameters that it is named by, which ROSA's weighted partition shares GPUs by (§4.1)."""
    gpus: dict[str, Footprint] = {}


class GpuType(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    memory_gb: float = Field(gt=0)


class Catalogue(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    gpu_types: dict[str, GpuType] = {}
    models: dict[str, CatalogueEntry]

    def footprint(self, model: str, gpu_type: str) -> Footprint | None:
        """What a model takes there; None: nobody has said."""
        return self.models[model].gpus.get(gpu_type) if model in self.models else None

    def fits(self, model: str, gpu_type: str) -> bool:
        """False only when both sizes are known and the model is too large."""
        need, gpu = self.footprint(model, gpu_type), self.gpu_types.get(gpu_type)
        return need is None or gpu is None or need.memory_gb <= gpu.memory_gb

    def __getitem__(self, model: str) -> CatalogueEntry:
        """Raises: `ModelError` for a model that nobody has described."""
        if model not in self.models:
            raise ModelError(f"model {model!r} is not in the catalogue; {did_you_mean(model, self.models)}")
        return self.models[model]

    @staticmethod
    def load(file: Path) -> Catalogue:
        source = yaml_source.read(file)
        catalogue = source.validate(Catalogue, (), source.data)
        return catalogue.model_copy(update={"models": {name: _beside(file, entry) for name, entry in catalogue.models.items()}})


def _beside(file: Path, entry: CatalogueEntry) -> CatalogueEntry:
    """A bundle that lies beside the catalogue, by its whole path."""
    folder = file.resolve().parent / entry.bundle
    return entry.model_copy(update={"bundle": str(folder)}) if entry.bundle and folder.is_dir() else entry
