"""Episodes of an audit log: a frame per command of a robot at work, with the newest images that it had sent by then.

Frames are per command, not per request: policies learn chunks of consecutive actions at the control rate, at any rate of requests.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator

from ros2_rfm_serving.audit.chain import Page
from ros2_rfm_serving.audit.export.frames import OTHER_TASK, Episode, Skipped
from ros2_rfm_serving.audit.export.labels import Labels
from ros2_rfm_serving.audit.export.story import Blob, Story
from ros2_rfm_serving.audit.log import ROBOT


def episodes(
    pages: Iterable[Page],
    blob: Blob,
    labels: Labels,
    skipped: Skipped,
    *,
    robots: Collection[str] = (),
    tasks: Collection[str] = (),
    rate_hz: float = 0.0,
) -> Iterator[Episode]:
    """Yield the episodes as they end. robots, tasks: empty includes all. rate_hz: rate of robots whose recording declares none."""
    stories: dict[tuple[str, int], Story] = {}
    """Episodes of each run of a robot; two runs may be simultaneous."""
    for page in pages:
        robot = page.writer.removeprefix(ROBOT)
        if not page.writer.startswith(ROBOT) or (robots and robot not in robots):
            continue
        story = stories.setdefault((robot, page.run), Story(robot, blob, labels, skipped, rate_hz=rate_hz or math.nan))
        for ended in story.read(page):
            yield from _wanted(ended, tasks, skipped)
    for story in stories.values():
        yield from _wanted(story.end(), tasks, skipped)


def _wanted(found: Episode | None, tasks: Collection[str], skipped: Skipped) -> Iterator[Episode]:
    if found is None:
        return
    if tasks and found.task not in tasks:
        skipped.episodes[OTHER_TASK] += 1
    else:
        yield found
