"""Machine of a measurement: columns of every row of every file of `make gpu`."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Literal

from ros2_rfm_serving.errors import ConfigurationError

Size = Literal["toy", "full"]
SIZES: tuple[Size, ...] = ("toy", "full")
CPU = "CPU"
"""GPU type of a run without one, in profiles too."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    device: str
    """Device of PyTorch: `cpu`, `cuda`, `cuda:1`."""
    gpu: str
    """Name by its driver, or `CPU`."""
    driver: str
    """`-` without a GPU, or where nvidia-smi does not report it."""
    torch: str
    size: Size

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def gpu_type(self) -> str:
        """Return the type in profiles and descriptors: `NVIDIA H100 80GB HBM3` is an `NVIDIA H100`."""
        return gpu_type_of(self.gpu)

    @property
    def profile_name(self) -> str:
        """Return the name of a profile: it is a GPU's type alone only at full size."""
        name = re.sub(r"[^a-z0-9]+", "_", self.gpu_type.lower()).strip("_").removeprefix("nvidia_")
        return f"{name}.csv" if self.on_gpu and self.size == "full" else f"{name}_{self.size}.csv"

    def model(self, name: str) -> str:
        """Return the model's name in profiles: that of a toy is distinct."""
        return name if self.size == "full" else f"toy/{name}"

    def columns(self) -> dict[str, str]:
        return {key: str(value) for key, value in asdict(self).items()}

    @property
    def identity(self) -> dict[str, str]:
        """Return the columns that must agree where figures are compared."""
        return identity_of(self.columns())


def identity_of(columns: Mapping[str, str]) -> dict[str, str]:
    """Return kind of device, PyTorch and size. Another driver, or another index of the same GPU, is the same machine."""
    return {
        "device": columns.get("device", "").partition(":")[0],
        **{key: columns.get(key, "") for key in ("gpu", "torch", "size")},
    }


def machine_from(columns: object) -> Machine | None:
    """Return the machine that `columns()` described; None: it is not such a description."""
    names = {field.name for field in fields(Machine)}
    if not isinstance(columns, dict) or columns.keys() != names or not all(isinstance(value, str) for value in columns.values()):
        return None
    return Machine(**columns) if columns["size"] in SIZES else None


def gpu_type_of(gpu: str) -> str:
    """Return the type of a GPU, whose name ends with the first word that has a digit."""
    words = gpu.split()
    ends = next((i for i, word in enumerate(words) if any(letter.isdigit() for letter in word)), len(words))
    return " ".join(words[: ends + 1])


def machine_of(device: str = "auto", size: str = "") -> Machine:
    """Return this machine. size: empty: full on a GPU, otherwise toy. Raises: `ConfigurationError` for a wrong size or device."""
    import torch

    if device == "auto":
        if not torch.cuda.is_available() and shutil.which("nvidia-smi"):
            problem = f"nvidia-smi is here, and PyTorch {torch.__version__} sees no GPU"
            raise ConfigurationError(problem, key="--device", fix="install a PyTorch for CUDA, or say cpu")
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ConfigurationError(f"{device!r} is none of auto, cpu, cuda, cuda:1", key="--device")
    index = int(device.partition(":")[2] or 0)
    on_gpu = device != "cpu"
    if on_gpu and index >= torch.cuda.device_count():
        sees = torch.cuda.device_count()
        raise ConfigurationError(
            f"{device!r} is not there: PyTorch {torch.__version__} sees {sees} GPUs", key="--device", fix="say cpu"
        )
    size = size or ("full" if on_gpu else "toy")
    if size not in SIZES:
        raise ConfigurationError(f"{size!r} is none of {', '.join(SIZES)}", key="--size")
    return Machine(
        device=device,
        gpu=torch.cuda.get_device_name(index) if on_gpu else CPU,
        driver=_driver() if on_gpu else "-",
        torch=torch.__version__,
        size="full" if size == "full" else "toy",
    )


def _driver() -> str:
    program = shutil.which("nvidia-smi")
    if not program:
        return "-"
    asked = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "-"
    return next(iter(said.split()), "-")
