"""`rfm bench engine --phases --beside`: one checkpoint by our networks and by LeRobot's, phases of both, in one run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lab.benchmarks.beside_lerobot import COMPILED, EAGER, OURS, TOGETHER, beside, table_beside
from lab.benchmarks.phases import Peaks
from ros2_rfm_serving.engines.architectures.engine import load_architecture
from ros2_rfm_serving.engines.lerobot.engine import LeRobotEngine
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.operate.engines import load_engine
from test.engines import larger_checkpoint
from test.engines import tiny_lerobot as tiny
from test.engines.lerobot_rig import built


def test_phases_of_both_are_told_and_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch, "compile", lambda function, mode: (asked.append(mode), function)[1])
    monkeypatch.setattr(tiny, "LARGER", {"pi0": {}})
    with tiny.loading():
        larger_checkpoint.write("pi0", tmp_path)
    ours, theirs = load_architecture("ours", tmp_path / "bundle"), built("pi0", tmp_path / "source")
    found = beside(ours, theirs, 2, 3, "default")
    assert asked == ["default"] and found.apart < 1e-4
    assert {name: [phase.name for phase in phases] for name, phases in found.phases.items()} == {
        OURS: ["perception", "solver", "processing"],
        EAGER: ["perception", "solver", "processing"],
        COMPILED: [TOGETHER, "processing"],
    }
    solvers = [found.phases[name][1] for name in (OURS, EAGER)]
    assert all(phase.calls == 5 and phase.work and phase.work.flops > 0 for phase in solvers)
    together = found.phases[COMPILED][0].work
    eager = [phase.work for phase in found.phases[EAGER][:2]]
    assert together and eager[0] and eager[1] and together.flops == eager[0].flops + 5 * eager[1].flops
    assert all(min(times) > 0 and len(times) == 3 for times in found.whole_s.values())
    flow = theirs.model.checkpoint.policy.model  # type: ignore[attr-defined]
    assert not {"sample_actions", "denoise_step"} & vars(flow).keys()
    assert table_beside(found, Peaks(flops=1e9, bytes=1e9), "title").row_count == 11
    eager_alone = beside(ours, theirs, 1, 1, "none")
    assert asked == ["default"] and set(eager_alone.phases) == set(eager_alone.whole_s) == {OURS, EAGER}
    assert "compiled" not in str(table_beside(eager_alone, Peaks(flops=1e9, bytes=1e9), "title").caption)


def test_what_is_not_one_checkpoint_is_refused(engines: dict[str, LeRobotEngine]) -> None:
    flow = load_engine("rfm/metaworld-flow")
    with pytest.raises(ModelError, match="engine: lerobot"):
        beside(flow, flow, 1, 1, "default")
    with pytest.raises(ModelError, match="engine: lerobot"):
        beside(flow, engines["act"], 1, 1, "default")
    with pytest.raises(ModelError, match="not one checkpoint: action_names"):
        beside(flow, engines["pi0"], 1, 1, "default")
