"""Chart of a profile: latency against throughput, one colour per batch size (ROSA Fig. 13)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ros2_rfm_serving.errors import ConfigurationError, ProfileError
from ros2_rfm_serving.profiles import Profile, ProfileRow


def draw(rows: Sequence[ProfileRow], file: Path) -> None:
    """Draw one panel per model and GPU. Raises: `ProfileError` when the file cannot be written."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise ConfigurationError("needs matplotlib", key="--plot", fix="pip install 'ros2-rfm-serving[plots]'") from None
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    profile = Profile.of(rows)
    panels = list(dict.fromkeys((row.model, row.gpu_type) for row in rows))
    columns = min(len(panels), 2)
    lines = -(-len(panels) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(3.3 * columns, 2.3 * lines), squeeze=False, layout="constrained")
    for axis, (model, gpu_type) in zip(axes.flat, panels, strict=False):
        _panel(axis, profile, model, gpu_type)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    try:
        figure.savefig(file, dpi=150, pil_kwargs={"compress_level": 9})
    except (OSError, ValueError) as error:
        raise ProfileError(f"{file}: cannot be written: {error}; choose a .png file in a folder that exists") from error
    finally:
        plt.close(figure)


def _panel(axis: Any, profile: Profile, model: str, gpu_type: str) -> None:
    from matplotlib.ticker import LogLocator

    for number, (batching, size) in enumerate(profile.batch_sizes(model, gpu_type)):
        rates_hz, _, latencies_s = profile.curve_arrays(model, gpu_type, batching, size)
        label = f"batch {size}" if batching == "fixed" else "continuous batching"
        axis.plot(rates_hz, 1e3 * latencies_s["p50"], "-", marker=".", color=f"C{number}", label=label)
        axis.plot(rates_hz, 1e3 * latencies_s["p99"], "--", color=f"C{number}", linewidth=1)
    axis.set_title(f"{model} on {gpu_type}", fontsize=8)
    axis.set_xlabel("throughput (requests/s)", fontsize=8)
    axis.set_ylabel("latency (ms): p50 solid, p99 dashed", fontsize=8)
    axis.set_yscale("log")
    axis.yaxis.set_minor_locator(LogLocator(subs=(2, 3, 5)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("{x:g}")
    axis.tick_params(which="both", labelsize=7)
    axis.grid(visible=True, alpha=0.2)
    axis.legend(fontsize=7)
