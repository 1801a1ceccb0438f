"""Model catalogue, `profiles/models.yaml`: for each model its engine, location, requirements, and the sources of these figures."""

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


class StepsEntry(BaseModel):
    """Division of an action model's fixed law into perception and equal solver steps.

    Both laws of the model therefore agree: a batch that no request joins takes the same time.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    num_steps: int = Field(ge=1)
    """Solver steps from perception to answer."""
    perception_base_ms: float = Field(ge=0)
    """Part of `base_ms`."""
    perception_per_row_ms: float = Field(ge=0)
    """Part of `per_row_ms`."""
    sizes: tuple[int, ...] = ()
    """Batch sizes of a perception and of a step, rising; empty: `batch_sizes`. More sizes are possible here, since a step is
    captured once, not once for each step of a batch."""


def _check_rising(name: str, sizes: tuple[int, ...]) -> None:
    if not sizes or sizes[0] < 1 or any(low >= high for low, high in pairwise(sizes)):
        raise ValueError(f"{name} is {list(sizes)}; it must be a rising list of whole numbers from 1")


class WaveStep(BaseModel):
    """A step in the service time over the batch size (`profiles.service.Wave`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    from_rows: int = Field(ge=1)
    extra_rows: float = Field(ge=0)
    """Height of the step, in multiples of `per_row_ms`."""


class ServiceEntry(BaseModel):
    """Service time of an emulated model. `profiles/service.py` has the laws."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    batching: Literal["fixed", "continuous"]
    base_ms: float = Field(gt=0)
    """Time of every batch (fixed), or of a request that is alone (continuous)."""
    per_row_ms: float | None = Field(default=None, ge=0)
    """Fixed: time added by every slot of the batch size."""
    batch_sizes: tuple[int, ...] = (1,)
    """Fixed: batch sizes that the model has been compiled for, rising."""
    wave: WaveStep | None = None
    """Fixed: step above which a batch takes longer than the line predicts; None: there is no step."""
    steps: StepsEntry | None = None
    """Fixed: parts of the law, with which the model can also batch continuously, one solver step at a time; None: it cannot."""
    per_request_ms: float | None = Field(default=None, gt=0)
    """Continuous: time added by every request in service."""
    max_concurrent: int = Field(default=256, ge=1)
    """Continuous: maximum number of requests in service."""
    jitter: float = Field(default=0.05, ge=0, le=1)
    """Relative standard deviation."""

    @model_validator(mode="after")
    def _keys_fit_the_batching(self) -> ServiceEntry:
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
        """Return the law of one solver step at a time; None: the catalogue has none."""
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


class FootprintEntry(BaseModel):
    """Requirements of a model on one type of GPU."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    memory_gb: float = Field(gt=0)
    load_s: float = Field(ge=0)
    source: str
    """Source of the figures."""
    service: ServiceEntry | None = None
    """Service time of an emulated model on this GPU; None: its latency profile has it."""
    derivation: str = ""
    """Derivation of `service` from published figures."""

    @model_validator(mode="after")
    def _a_law_says_where_it_comes_from(self) -> FootprintEntry:
        if self.service and not self.derivation.strip():
            raise ValueError("derivation is missing: say how published figures led to `service`")
        return self


class CatalogueEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    engine: str
    """Name of an engine (engines/registry.py): `bundle` (an embedded model), `lerobot`, `jax`, `vllm`, `openai`, `remote`,
    `emulated` (it takes the time of its service law or profile; no model runs), an entry point, or `package.module:function`."""
    options: dict[str, Any] = {}
    """Options that the engine validates itself."""
    bundle: str = ""
    """Folder for `bundle`: beside the catalogue, or below models/."""
    parity: Literal["on_request", "at_start"] = "on_request"
    """`at_start`: servers compare the model with its reference, block by block, and do not serve it when the deviation exceeds the
    limit; `on_request`: only `rfm parity` compares them."""
    output: str = Field(default="action_chunk", pattern="^(action_chunk|judgement|plan)$")
    action_names: tuple[str, ...] = ()
    """Action names of an emulated action model."""
    cameras: tuple[str, ...] = ()
    """Cameras that an emulated model asks for."""
    state_size: int = Field(default=0, ge=0)
    """State size that an emulated model asks for."""
    chunk_length: int = Field(default=16, ge=1)
    """Chunk length of an emulated action model, in control steps."""
    size_b: float | None = Field(default=None, gt=0)
    """Billions of parameters in the model's name, by which ROSA's weighted partition shares GPUs (§4.1)."""
    gpus: dict[str, FootprintEntry] = {}


class GpuType(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    memory_gb: float = Field(gt=0)


class Catalogue(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    gpu_types: dict[str, GpuType] = {}
    models: dict[str, CatalogueEntry]

    def footprint(self, model: str, gpu_type: str) -> FootprintEntry | None:
        """Return the requirements of a model on a type of GPU; None: not known."""
        return self.models[model].gpus.get(gpu_type) if model in self.models else None

    def fits(self, model: str, gpu_type: str) -> bool:
        """Return whether a model fits; it does not only when both sizes are known and the model is too large."""
        need, gpu = self.footprint(model, gpu_type), self.gpu_types.get(gpu_type)
        return need is None or gpu is None or need.memory_gb <= gpu.memory_gb

    def __getitem__(self, model: str) -> CatalogueEntry:
        """Return the entry of a model. Raises: `ModelError` for one that is not in the catalogue."""
        if model not in self.models:
            raise ModelError(f"model {model!r} is not in the catalogue; {did_you_mean(model, self.models)}")
        return self.models[model]

    @staticmethod
    def load(file: Path) -> Catalogue:
        source = yaml_source.read(file)
        catalogue = source.validate(Catalogue, (), source.data)
        return catalogue.model_copy(update={"models": {name: _beside(file, entry) for name, entry in catalogue.models.items()}})


def _beside(file: Path, entry: CatalogueEntry) -> CatalogueEntry:
    """Return the entry with the full path of a bundle that is beside the catalogue."""
    folder = file.resolve().parent / entry.bundle
    return entry.model_copy(update={"bundle": str(folder)}) if entry.bundle and folder.is_dir() else entry
