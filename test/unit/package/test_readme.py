"""What the README shows is what a new user types."""

from __future__ import annotations

import re
from pathlib import Path

from ros2_rfm_serving.factory import load_factory


def test_the_descriptor_that_is_shown_has_robots_that_move(repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "my_factory.yaml"
    (shown,) = re.findall(r"```yaml\n(.*?)```", (repository / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    file.write_text(shown, encoding="utf-8")
    factory = load_factory(file)
    assert factory.robots and all(task.world for task in factory.tasks.values())
    named = set(re.findall(r"my_factory\.yaml --task (\w+)", (repository / "README.md").read_text(encoding="utf-8")))
    assert named <= set(factory.tasks)
