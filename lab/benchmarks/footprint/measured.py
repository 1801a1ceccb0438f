"""One model at one precision, in a fresh process: `python -m ...measured FOLDER DTYPE DEVICE STEPS CHUNKS`.

It prints its figures as one line of JSON. The memory of Python, PyTorch and the engines' modules is measured before, and is not
counted as the model's.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ros2_rfm_serving.engines.base import Engine

LEAST_S = 1e-6


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Memory and times of one model.

    Bytes of resident memory are beyond those of the process before it loaded; 0 on a device that is not used. Seconds are of this
    process's CPU time on a CPU, where it has one thread and others may run beside it, and of the clock on a GPU.
    """

    file_bytes: int
    """Size of the loaded files: configuration, weights, tokenizer."""
    empty_bytes: int
    """Resident memory of Python, PyTorch and the modules."""
    resident_bytes: int
    """Resident memory after the last chunk, or after loading if there is none."""
    files_bytes: int
    """Pages of files in it, the bundle's and libraries', which processes share and the system may reclaim."""
    peak_bytes: int
    """Peak from loading to the last chunk."""
    device_bytes: int
    """Memory that is allocated on the GPU after the last chunk."""
    device_peak_bytes: int
    import_s: float
    load_s: float
    gate_s: float
    """Duration of the parity gate, where it is required; 0: it is not."""
    ready_s: float
    """Time from loading until it serves: loading, gate, warm-up."""
    first_chunk_s: float
    chunk_s: float
    """Median of the chunks after the first."""
    served: bool
    """Whether the gate passes."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Medians of the rounds."""

    model: str
    precision: str
    figures: Footprint


def measured(folder: Path, dtype: str, device: str, steps: int, chunks: int) -> Footprint:
    """Measure a model. steps: of a solver; 0: the model's own. chunks: after the first; 0: it is only loaded.

    Raises: `ModelError` when it is no model, or not available at that precision.
    """
    clock = time.process_time if device == "cpu" else time.perf_counter
    began_s = clock()
    import torch

    from ros2_rfm_serving.engines.bundles import load_bundle
    from ros2_rfm_serving.engines.embedded.bundle import FILES, PROCESSOR_FILES
    from ros2_rfm_serving.engines.embedded.options import BundleOptions
    from ros2_rfm_serving.engines.warmup import warmup_request

    _import_architecture(folder)
    torch.set_num_threads(1)
    import_s = clock() - began_s
    empty, files_before = resident_bytes()
    forget_peak()

    begins_s = clock()
    options = BundleOptions.model_validate({"device": device, "dtype": dtype, "num_steps": steps or None})
    engine = load_bundle(folder.name, folder, options)
    loaded_s = clock()
    served = not (engine.must_agree and chunks) or all(check.passes for check in engine.check_precision())
    checked_s = clock()
    times_s = [0.0, 0.0]
    if chunks:
        engine.warm_up()
    ready_s = clock()
    if chunks:
        request = warmup_request(engine.contract, encoded=engine.takes_encoded)
        times_s = [_chunk_s(engine, request, clock) for _ in range(chunks + 1)]
    resident, files = resident_bytes()
    on_gpu = device.startswith("cuda")
    return Footprint(
        file_bytes=sum((folder / name).stat().st_size for name in (*FILES, *PROCESSOR_FILES) if (folder / name).is_file()),
        empty_bytes=empty,
        resident_bytes=resident - empty,
        files_bytes=files - files_before,
        peak_bytes=peak_bytes() - empty,
        device_bytes=torch.cuda.memory_allocated(device) if on_gpu else 0,
        device_peak_bytes=torch.cuda.max_memory_allocated(device) if on_gpu else 0,
        import_s=import_s,
        load_s=loaded_s - begins_s,
        gate_s=checked_s - loaded_s if engine.must_agree and chunks else 0.0,
        ready_s=ready_s - begins_s,
        first_chunk_s=times_s[0],
        chunk_s=median(times_s[1:]),
        served=served,
    )


def _import_architecture(folder: Path) -> None:
    from ros2_rfm_serving.engines.embedded.bundle import read_config

    config = read_config(folder)
    if config.get("kind") == "architecture":
        from ros2_rfm_serving.engines.architectures import engine  # noqa: F401
        from ros2_rfm_serving.engines.architectures.names import architecture_of

        architecture_of(config["architecture"])


def _chunk_s(engine: Engine, request: object, clock: Callable[[], float]) -> float:
    from ros2_rfm_serving.errors import ModelError

    began_s = clock()
    (answer,) = engine.infer([request])  # type: ignore[list-item]
    took_s = clock() - began_s
    if isinstance(answer, ModelError):
        raise answer
    return max(took_s, LEAST_S)


def resident_bytes() -> tuple[int, int]:
    """Return the resident memory of this process, and the part that is mapped from files. Linux only."""
    status = _status()
    return status["VmRSS"], status["RssFile"]


def peak_bytes() -> int:
    """Return the peak since `forget_peak`, or since the process began where that is not allowed."""
    return _status()["VmHWM"]


def forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError as error:
        print(f"the peak is that of the whole process: {error}", file=sys.stderr)


def _status() -> dict[str, int]:
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    pairs = (line.partition(":")[::2] for line in lines)
    return {key: 1024 * int(value.split()[0]) for key, value in pairs if value.endswith(" kB")}


def _end_with_who_started_it() -> None:
    """End this process when the parent's end of the pipe closes, however the parent ends."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def main(arguments: list[str]) -> None:
    from ros2_rfm_serving.errors import ModelError

    threading.Thread(target=_end_with_who_started_it, daemon=True).start()

    folder, dtype, device, steps, chunks = arguments
    try:
        print(json.dumps(asdict(measured(Path(folder), dtype, device, int(steps), int(chunks)))), flush=True)
    except ModelError as error:
        print(json.dumps({"refused": str(error)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
