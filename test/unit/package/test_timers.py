"""Only one place makes timers: it knows which clock they are to follow."""

from __future__ import annotations

from pathlib import Path


def test_no_timer_follows_the_wall_clock_or_a_simulated_one(repository: Path) -> None:
    sources = [file for folder in ("ros2_rfm_serving", "lab") for file in (repository / folder).rglob("*.py")]
    makers = {file.name for file in sources if ".create_timer(" in file.read_text() or ".create_rate(" in file.read_text()}
    assert makers == {"timers.py"}
