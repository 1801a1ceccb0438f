"""A robot's audit log over DDS: who subscribes gets a chain that fits together and replays; while nobody does, nothing is noted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import rclpy
from rfm_serving import action, msg

from ros2_rfm_serving.audit.chain import Page
from ros2_rfm_serving.audit.replay import Replayed, brains, replay
from ros2_rfm_serving.audit.robots.replay import RobotReplay
from ros2_rfm_serving.audit.verify import verify
from ros2_rfm_serving.ros.node.audit import page_from
from ros2_rfm_serving.ros.wire import qos
from test.ros.test_robot_node import PARAMETERS, SUCCESS, RobotRig
from test.unit.audit.recordings import all_records


class AuditRig(RobotRig):
    """With somebody who subscribes to the audit log when it is time."""

    def listen(self) -> list[Page]:
        pages: list[Page] = []
        self.ear = self.peer.create_subscription(msg.AuditPage, "/r1/rfm/audit", lambda m: pages.append(page_from(m)), qos.AUDIT)
        return pages

    @property
    def journal(self) -> Any:
        return self.node._robots[0]._audit.journal


@pytest.fixture
def rig(ros_domain: int) -> Iterator[AuditRig]:
    rclpy.init(args=["--ros-args", *[part for p in PARAMETERS for part in ("-p", p)]])
    made = AuditRig()
    try:
        yield made
    finally:
        made.close()
        rclpy.try_shutdown()


def replayed(pages: list[Page]) -> Replayed:
    return list(replay(pages, {"robot": brains(RobotReplay)}))[-1]


def ticks(pages: list[Page]) -> list[dict[str, Any]]:
    """Why each control period did what it did."""
    return [record["why"] for record in all_records(pages) if record["kind"] == "tick"]


def test_a_real_robot_decides_again_what_it_decided(rig: AuditRig) -> None:
    rig.bring_up()
    handle = rig.work()
    rig.spin(1.0)
    assert rig.journal.records == 0 and not rig.journal.on, "nobody listens, and something was noted"
    pages = rig.listen()
    rig.wait(lambda: pages, "a page")
    rig.call(rig.robot.services["pause"])
    rig.wait(lambda: any(why.get("reason") == "paused by a person" for why in ticks(pages[-1:])), "a period in which it is paused")
    rig.call(rig.robot.services["resume"])
    (body,) = rig.node._robots
    executed = body.brain.task.executed_steps
    rig.wait(lambda: body.brain.task.executed_steps > executed + 50, "actions again")
    handle.cancel_goal_async()
    assert rig.result(handle).error_code == action.ExecuteTask.Result.CANCELED
    assert rig.node.trigger_deactivate() == SUCCESS and rig.node.trigger_cleanup() == SUCCESS
    rig.wait(lambda: all_records(pages)[-1]["kind"] == "closed", "the end of its chain")

    found = verify(lambda: pages)
    assert [flaw.writer for flaw in found.flaws] == ["recorder/"], "nobody recorded; else there is no flaw"
    assert found.chains[0].closed and found.chains[0].begins == 0
    records = all_records(pages)
    assert {"begin", "snapshot", "tick", "event", "transition", "operator_command", "closed"} <= {
        record["kind"] for record in records
    }
    people = [(record["command"], record["done"]) for record in records if record["kind"] == "operator_command"]
    assert people == [("pause", True), ("resume", True)]
    whys = ticks(pages)
    rows = [why for why in whys if why["source"] == "step"]
    assert rows and all(why["chunk"]["server"] == "s1" and why["staleness_s"] >= 0 for why in rows)
    paused = {why["source"] for why in whys if why.get("reason") == "paused by a person"}
    assert paused == {"fallback"}
    again = replayed(pages)
    assert again.difference is None and not again.refused and again.decisions > 50, again


def test_who_comes_back_gets_a_chain_of_its_own_and_who_comes_too_a_snapshot(rig: AuditRig) -> None:
    rig.bring_up()
    rig.work()
    first = rig.listen()
    rig.wait(lambda: len(first) > 2, "pages")
    rig.peer.destroy_subscription(rig.ear)
    rig.wait(lambda: not rig.journal.on, "the end of the chain")
    records = rig.journal.records
    rig.spin(0.5)
    assert rig.journal.records == records
    second = rig.listen()
    rig.wait(lambda: second, "pages")
    (begin, *_) = all_records(second)
    assert second[0].run != first[0].run and begin["after"]["run"] == first[0].run
    ear, third = rig.ear, rig.listen()
    rig.wait(lambda: any(record.get("why") == "subscriber" for record in all_records(third)), "a snapshot for the newcomer")
    rig.peer.destroy_subscription(ear)
    rig.wait(lambda: replayed(third).decisions > 0, "decisions after it")
    assert replayed(third).difference is None
    assert int(rig.values("r1").get("audit_failures", 0)) == 0


def test_a_journal_that_fails_harms_nobody(rig: AuditRig) -> None:
    rig.bring_up()
    rig.work()
    pages = rig.listen()
    rig.wait(lambda: pages, "a page")
    (body,) = rig.node._robots
    body.brain.snapshot = lambda: {"hat": object()}  # what cannot be recorded
    rig.journal.listeners(2, 0.0)
    rig.wait(lambda: rig.journal.failures > 0, "a failure")
    executed = body.brain.task.executed_steps
    rig.wait(lambda: body.brain.task.executed_steps > executed + 10, "actions that go on")
    del body.brain.snapshot
    run = pages[0].run
    rig.wait(lambda: any(page.run != run for page in pages), "another chain")
    rig.wait(lambda: int(rig.values("r1").get("audit_failures", 0)) > 0, "the counter")
    assert "cannot be recorded" in rig.values("r1")["audit_problem"]
    (ended, *_) = [record for record in all_records(page for page in pages if page.run == run) if record["kind"] == "closed"]
    assert "cannot be recorded" in ended["why"]
    again = replayed([page for page in pages if page.run != run])
    assert again.difference is None
