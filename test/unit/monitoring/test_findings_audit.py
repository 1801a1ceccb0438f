"""A recording whose chains broke off is something that is wrong with a factory."""

from __future__ import annotations

from ros2_rfm_serving.audit.recording.told import broken_lines
from ros2_rfm_serving.monitoring.findings.causes import findings
from ros2_rfm_serving.monitoring.findings.look import WARN
from test.unit.monitoring.test_findings import healthy, says


def test_chains_that_broke_off_are_named_by_their_writer_and_the_reason() -> None:
    look = healthy()
    assert not findings(look)
    says(look, "recorder: recording", WARN, *broken_lines({"robot/arm_1": (3, "the recording failed: TypeError: a hat")}))
    evidence = [line for one in findings(look) for line in one.evidence]
    assert any("robot/arm_1" in line and "began anew 3 times" in line and "TypeError: a hat" in line for line in evidence), evidence
