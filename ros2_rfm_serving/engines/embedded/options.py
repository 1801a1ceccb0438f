"""What a catalogue entry with `engine: bundle` may ask for (docs/engines.md)."""

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
    """`auto`: the first GPU, or the CPU where there is none or where the placement says `CPU`."""
    dtype: Literal["float32", "bfloat16", "float16", "int8", "int4"] = "float32"
    """Of weights and, but for integers, of layers; statistics, times, indices and the sampling loop are float32 at least."""
    compile: bool | None = None
    """With torch.compile; by default on a GPU only: on a CPU it gains next to nothing and takes half a minute per batch size."""
    cuda_graphs: bool | None = None
    """By default on a GPU."""
    trace: bool | None = None
    """As a graph of PyTorch's own operations; by default on a CPU where nothing is compiled."""
    batch_sizes: tuple[int, ...] = Field(default=(1, 2, 4, 8, 16, 32), min_length=1)
    """That are compiled or recorded at warm-up, rising; a batch is filled up to the next one. Elsewhere any size runs as it is."""
    max_rows: int | None = Field(default=None, ge=1, le=1024)
    """In flight at once with `batching: continuous`; by default as many as the largest batch."""
    num_steps: int | None = Field(default=None, ge=1, le=1000)
    """Of the solver; by default the bundle's."""
    noise_scale: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """By default the bundle's."""
    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Of an autoregressive policy's sampling, 0: greedy; by default the bundle's."""
    seed: int = Field(default=0, ge=0)
    """Of the noise."""
    scaled_decoding: bool = False
    """JPEGs are decoded at a half, a quarter or an eighth where that is no smaller than the network's images: less work, and pixels
    that differ by a little from those that training saw (docs/engines.md)."""
    device_decoding: bool = False
    """JPEGs are decoded on the GPU, by torchvision; their pixels differ a little from the host's, too."""
    true_jacobian: bool = False
    """Sessions may ask for guidance through the model's Jacobian: 2 to 4 times as long, for all robots of a batch."""

    @field_validator("batch_sizes")
    @classmethod
    def _rising(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if list(sizes) != sorted(set(sizes)) or sizes[0] < 1 or sizes[-1] > MAX_BATCH_SIZE:
            raise ValueError(f"batch sizes rise, from 1 at least to {MAX_BATCH_SIZE} at most")
        return sizes

    def changes(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """What these options make of a bundle that was `saved` with this configuration, for its hash: what shapes an answer."""
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
        """`ModelContract.min_image_px` of a network with images of this size."""
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
        """Weights are integers."""
        return self.dtype in STORED

    @property
    def computed_by(self) -> str:
        """`Engine.computed_by`: another processor or GPU, another release of PyTorch has other kernels; what looks at images is
        code of `transformers`, whose releases do not number an image's patches alike."""
        here = f"{processor()} {torch.backends.cpu.get_cpu_capability()}"
        hardware = torch.cuda.get_device_name(self.device) if self.on_gpu else here
        return f"{self.model_dump_json()} {hardware} {torch.__version__} {_release_of('transformers')}"

    def on_device(self, model: str) -> BundleOptions:
        """With a device that is there. Raises: `ModelError`."""
        options = self.model_copy(update={"device": device_of(model, self.device)})
        if options.device_decoding and options.scaled_decoding:
            raise ModelError(f"{model!r}: options.device_decoding decodes images whole; leave it or options.scaled_decoding out")
        if options.records and not options.on_gpu:
            raise ModelError(f"{model!r}: options.cuda_graphs needs a GPU, options.device is {options.device!r}; leave it out")
        if options.device_decoding and not options.on_gpu:
            raise ModelError(f"{model!r}: options.device_decoding needs a GPU, options.device is {options.device!r}; leave it out")
        return options


def _release_of(library: str) -> str:
    """Empty: it is not installed."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""


def device_of(model: str, device: str, gpu_type: str = "") -> str:
    """What `auto` is: the first GPU, or the CPU where there is none or where the placement says `CPU`.

    Raises: `ModelError` for a GPU that is not there.
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
