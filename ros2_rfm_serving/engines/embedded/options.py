"""Options of a catalogue entry with `engine: bundle` (docs/reference/engines.md)."""

from __future__ import annotations

import importlib.metadata
import logging
import os
from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator

from ros2_rfm_serving.engines.precision import STORED
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.factory.environment import VISIBLE
from ros2_rfm_serving.processor import processor

MAX_BATCH_SIZE = 32
_log = logging.getLogger(__name__)
DEVICE = r"^(auto|cpu|cuda(:\d+)?)$"


class BundleOptions(BaseModel):
    """`options` of a catalogue entry with `engine: bundle`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    device: str = Field(default="auto", pattern=DEVICE)
    """Device; `auto` selects the first GPU, or the CPU if there is none or the placement says `CPU`."""
    dtype: Literal["float32", "bfloat16", "float16", "int8", "int4"] = "float32"
    """Dtype of weights and, except for integers, of layers; statistics, times, indices and the sampling loop are float32 at
    least."""
    compile: bool | None = None
    """Whether torch.compile is used; by default on a GPU only, as it gains next to nothing on a CPU and takes half a minute per
    batch size."""
    cuda_graphs: bool | None = None
    """Whether CUDA graphs are captured; by default on a GPU."""
    trace: bool | None = None
    """Whether networks run as traced graphs of PyTorch's own operations; by default on a CPU where nothing is compiled."""
    batch_sizes: tuple[int, ...] = Field(default=(1, 2, 4, 8, 16, 32), min_length=1)
    """Batch sizes, rising, that are compiled or captured at warm-up; a batch is padded to the next one.
    Otherwise any size runs unpadded."""
    max_rows: int | None = Field(default=None, ge=1, le=1024)
    """Largest number of rows in flight with `batching: continuous`; by default as many as the largest batch."""
    num_steps: int | None = Field(default=None, ge=1, le=1000)
    """Denoising steps; by default the bundle's."""
    noise_scale: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Standard deviation of the noise; by default the bundle's."""
    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Sampling temperature of an autoregressive policy, 0 for greedy decoding; by default the bundle's."""
    seed: int = Field(default=0, ge=0)
    """Seed of the noise."""
    scaled_decoding: bool = False
    """True if JPEGs are decoded at a half, a quarter or an eighth where that is no smaller than the network's images.
    It is less work, and gives pixels that differ slightly from those in training (docs/reference/engines.md)."""
    device_decoding: bool = False
    """True if JPEGs are decoded on the GPU, by torchvision; their pixels differ slightly from the host's, too."""
    true_jacobian: bool = False
    """True if sessions may ask for guidance through the model's Jacobian: it takes 2 to 4 times as long, for all robots of a
    batch."""

    @field_validator("batch_sizes")
    @classmethod
    def _rising(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if list(sizes) != sorted(set(sizes)) or sizes[0] < 1 or sizes[-1] > MAX_BATCH_SIZE:
            raise ValueError(f"batch sizes rise, from 1 at least to {MAX_BATCH_SIZE} at most")
        return sizes

    def changes(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Return the changes of these options to a bundle's `saved` configuration that shape an answer, for its hash."""
        asked: dict[str, Any] = {
            "dtype": self.dtype,
            "num_steps": self.num_steps,
            "noise_scale": self.noise_scale,
            "temperature": self.temperature,
        }
        asked |= {"scaled_decoding": self.scaled_decoding, "device_decoding": self.device_decoding}
        own = {"dtype": "float32", "scaled_decoding": False, "device_decoding": False, **saved}
        return {key: value for key, value in asked.items() if value is not None and key in own and value != own[key]}

    def min_image_px(self, width_px: int, height_px: int) -> tuple[int, ...]:
        """Return `ModelContract.min_image_px` of a network with images of this size."""
        return (width_px, height_px) if self.scaled_decoding else ()

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def compiles(self) -> bool:
        return self.on_gpu if self.compile is None else self.compile

    @property
    def records(self) -> bool:
        return self.on_gpu if self.cuda_graphs is None else self.cuda_graphs

    @property
    def traces(self) -> bool:
        return not (self.compiles or self.records) and (not self.on_gpu if self.trace is None else self.trace)

    @property
    def fixed_shapes(self) -> tuple[int, ...]:
        return self.batch_sizes if self.compiles or self.records else ()

    @property
    def quantizes(self) -> bool:
        """True if weights are integers."""
        return self.dtype in STORED

    @property
    def computed_by(self) -> str:
        """Identity of options and hardware, for `Engine.computed_by`. Another processor, GPU or release of PyTorch has other
        kernels. Code of `transformers` encodes images, and its releases do not number an image's patches alike."""
        here = f"{processor()} {torch.backends.cpu.get_cpu_capability()}"
        hardware = torch.cuda.get_device_name(self.device) if self.on_gpu else here
        return f"{self.model_dump_json()} {hardware} {torch.__version__} {_release_of('transformers')}"

    def on_device(self, model: str) -> BundleOptions:
        """Return the options with a device that exists. Raises: `ModelError` if they do not fit it."""
        options = self.model_copy(update={"device": device_of(model, self.device)})
        if options.device_decoding and options.scaled_decoding:
            raise ModelError(f"{model!r}: options.device_decoding decodes images whole; leave it or options.scaled_decoding out")
        if options.records and not options.on_gpu:
            raise ModelError(f"{model!r}: options.cuda_graphs needs a GPU, options.device is {options.device!r}; leave it out")
        if options.device_decoding and not options.on_gpu:
            raise ModelError(f"{model!r}: options.device_decoding needs a GPU, options.device is {options.device!r}; leave it out")
        return options


def _release_of(library: str) -> str:
    """Return the release of a library; empty if it is not installed."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""


def device_of(model: str, device: str, gpu_type: str = "") -> str:
    """Return the device, with `auto` resolved to the first GPU, or to the CPU if there is none or the placement says `CPU`.

    Raises: `ModelError` for a GPU that does not exist.
    """
    if device == "auto":
        if gpu_type != "CPU" and (given := os.environ.get(VISIBLE)) and not torch.cuda.is_available():
            _log.warning(
                "%r is served by the CPU: PyTorch sees no GPU where %s is %r; is it there (rfm doctor), has this PyTorch CUDA?",
                model,
                VISIBLE,
                given,
            )
        return "cuda" if torch.cuda.is_available() and gpu_type != "CPU" else "cpu"
    sees = torch.cuda.device_count()
    if device.startswith("cuda") and int(device.partition(":")[2] or 0) >= sees:
        raise ModelError(f"{model!r}: options.device is {device!r}, PyTorch sees {sees} GPUs; say `{'cuda' if sees else 'cpu'}`")
    return device


ON_CPU = BundleOptions(device="cpu")
