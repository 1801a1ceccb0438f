"""`rfm why` over a real factory: healthy it says so, and of a server that was killed what is known. All causes: `make operate`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ros2_rfm_serving.monitoring.findings.causes import UNANSWERED
from test.operate.floor import ROBOT, SERVER, Floor

LOOKS = 5
"""A machine that is busy with other things may be late now and then, and then it is said."""


@pytest.fixture
def floor(repository: Path, tmp_path: Path, ros_domain: int) -> Iterator[Floor]:
    made = Floor(repository, tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.timeout(200)
def test_a_factory_that_is_there_healthy_and_without_its_server(floor: Floor) -> None:
    nobody = floor.shell("rfm why --wait 0.5")
    assert nobody.returncode == 2 and "no factory is running in ROS domain" in nobody.stderr

    floor.open()
    for _ in range(LOOKS):
        if (healthy := floor.shell("rfm why --seconds 4")).returncode == 0:
            break
    assert healthy.returncode == 0 and healthy.stdout.startswith("nothing is wrong: 1 robot and 1 server"), healthy.stdout

    floor.kill("model_server_node")
    floor.watch(2.5)
    done = floor.shell(f"rfm why {ROBOT} --seconds 5 --json")
    found = json.loads(done.stdout)
    assert done.returncode == 1 and not found["ok"] and found["looked_s"] >= 5.0
    finding, *others = found["findings"]
    assert (finding["cause"], finding["about"]) == ("server gone", SERVER), found["findings"]
    assert finding["evidence"] and finding["mend"]
    # What follows from the loss is not repeated beside it. A busy machine may be late with other things, too.
    assert not {other["cause"] for other in others} & {"hung engine", "drifted profile", *UNANSWERED}, others
