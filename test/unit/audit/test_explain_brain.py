"""What real brains note, explained: no record here is made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ros2_rfm_serving.audit.chain import Page
from ros2_rfm_serving.audit.explain.explain import explain
from ros2_rfm_serving.audit.explain.explanation import Explanation
from ros2_rfm_serving.audit.export.episodes import episodes
from ros2_rfm_serving.audit.export.frames import Skipped
from ros2_rfm_serving.audit.export.labels import Labels
from ros2_rfm_serving.audit.export.story import NO_EPISODE, NO_IMAGE
from ros2_rfm_serving.audit.log import AuditLog
from ros2_rfm_serving.types import PipelineConfig
from test.unit.audit.recordings import recorded_world, run
from test.unit.robot.robot_world import HOME, SPARE
from test.unit.robot.robots import FAILING


@pytest.fixture(scope="module")
def pages() -> list[Page]:
    """Four seconds of a robot that is served; one and a half in which nobody serves it; then a person pauses it."""
    world, recorder = recorded_world()
    recorder.journal._stamp_s = lambda: 1e9 + world.now_s
    run(world, recorder, 4)
    for server in (HOME, SPARE):
        world.servers[server].up = False
        world.brain.on_server_lost(server, world.now_s, f"{server} is lost")
    run(world, recorder, 1.5)
    world.brain.pause(world.now_s)
    run(world, recorder, 0.5)
    recorder.journal.close(world.now_s, "the end of the process")
    return recorder.pages


def at(pages: list[Page], seconds: float) -> Explanation:
    log = AuditLog(pages)
    return explain(log, "r1", log.of("robot/r1")[0].stamp_s + seconds)


def said(found: Explanation, name: str) -> str:
    return "\n".join(next(part for part in found.parts if part.name == name).lines)


def test_a_served_robot_executes_a_row_of_a_known_chunk(pages: list[Page]) -> None:
    found = at(pages, 3.0)
    assert found.headline.startswith("executed row") and HOME in found.headline
    assert "STREAMING, executing" in said(found, "robot") and "task t" in said(found, "robot")
    assert all(next(part for part in found.parts if part.name == name).known for name in ("sensors", "request", "chunk", "command"))


def test_a_pipelined_chunk_says_what_it_began_and_ended_with() -> None:
    world, recorder = recorded_world(replace(FAILING, execution_horizon=4, pipelining=PipelineConfig(pp_generation=2)))
    recorder.journal._stamp_s = lambda: 1e9 + world.now_s
    run(world, recorder, 4)
    recorder.journal.close(world.now_s, "the end of the process")
    found = at(recorder.pages, 3.0)
    chunk = next(part for part in found.parts if part.name == "chunk")
    began = next(part for part in found.parts if part.name == "request").facts["sequence"]
    assert chunk.facts["ended_with"] > began
    assert f"began with observation {began}, ended with {chunk.facts['ended_with']}" in said(found, "chunk")
    assert "the one that its chunk began with was" in said(found, "command")


def test_a_robot_that_nobody_serves_says_so(pages: list[Page]) -> None:
    found = at(pages, 5.4)
    assert found.headline.startswith("held (") and "is lost" in said(found, "robot")
    assert "no action was executed" in said(found, "command") and "control periods" in said(found, "command")


def test_a_paused_robot_says_who_holds_it(pages: list[Page]) -> None:
    found = at(pages, 5.9)
    assert "paused" in found.headline and "paused" in said(found, "robot") and "pause" in said(found, "events")


def test_an_export_reads_all_of_it_and_says_that_this_robot_sent_no_images(pages: list[Page]) -> None:
    skipped = Skipped()
    assert not list(episodes(pages, {}.get, Labels(), skipped))
    assert skipped.frames[NO_IMAGE] > 60 and set(skipped.frames) <= {NO_IMAGE, NO_EPISODE}
