"""Whether a process gets its cores, by the figures of the kernel."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ros2_rfm_serving.ros.node.core_wait import SCHEDSTAT, WINDOW_S, CoreWait


def test_the_share_of_the_time_in_which_a_core_was_wanted_and_not_there(tmp_path: Path) -> None:
    file = tmp_path / "schedstat"
    file.write_text("1000 500 3")
    cores = CoreWait(file)
    assert math.isnan(cores.figures(0.0)["core_wait_share"])
    file.write_text("2000 3500 9")
    assert math.isnan(cores.figures(0.5 * WINDOW_S)["core_wait_share"]), "the window is not over"
    assert cores.figures(WINDOW_S)["core_wait_share"] == pytest.approx(3000 / 4000)


@pytest.mark.parametrize("text", ["", "no numbers here"])
def test_a_system_without_these_figures_has_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "schedstat"
    file.write_text(text) if text else None
    cores = CoreWait(file)
    assert all(math.isnan(cores.figures(second)["core_wait_share"]) for second in (0.0, 5.0, 10.0))


@pytest.mark.skipif(not SCHEDSTAT.exists(), reason="another system than Linux")
def test_the_kernel_has_them() -> None:
    cores = CoreWait()
    cores.figures(0.0)
    sum(range(10**6))
    found = cores.figures(WINDOW_S)
    assert 0.0 <= found["core_wait_share"] <= 1.0 and found["machine_cores"] >= 1 and found["machine"]
