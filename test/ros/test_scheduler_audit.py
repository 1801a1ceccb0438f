"""A scheduler, a server and a robot that follow it, all of them heard: whoever decided decides the same again."""

from __future__ import annotations

from typing import Any

from rfm_serving import msg, srv

from ros2_rfm_serving.audit.chain import Page, records
from ros2_rfm_serving.audit.replay import replay
from ros2_rfm_serving.cli.replay import makers
from ros2_rfm_serving.ros.node.audit import page_from
from ros2_rfm_serving.ros.wire import qos
from test.ros.test_scheduler_node import Rig, rig  # noqa: F401 (a fixture)

TOPICS = ("/rfm/audit", "/rfm/servers/server_1/audit", "/arm_1/rfm/audit")


def test_plans_batches_and_commands_are_decided_again(rig: Rig) -> None:  # noqa: F811
    pages: list[Page] = []
    for topic in TOPICS:
        rig.peer.create_subscription(msg.AuditPage, topic, lambda page: pages.append(page_from(page)), qos.AUDIT)

    def of(writer: str, kind: str) -> list[dict[str, Any]]:
        return [record for page in pages if page.writer == writer for record in records(page) if record["kind"] == kind]

    rig.wait(lambda: all(of(writer, "snapshot") for writer in ("scheduler", "server/server_1", "robot/arm_1")))
    rig.wait(lambda: of("server/server_1", "transition") or rig.server_status.state == msg.ServerStatus.READY)
    assert rig.call(srv.AdmitRobot, robot="guest", task="arm").success
    assert not rig.call(srv.AdmitRobot, robot="other", task="leg").success
    assert rig.call(srv.ReleaseRobot, robot="guest").success
    rig.wait(lambda: len(of("scheduler", "operator_command")) == 3)
    told = [(one["command"], one["done"]) for one in of("scheduler", "operator_command")]
    assert told == [("admit 'guest' for 'arm'", True), ("admit 'other' for 'leg'", False), ("release 'guest'", True)]
    assert {"changed"} <= {one["how"] for one in of("scheduler", "plan")}
    results = {one.writer: one for one in replay(pages, makers())}
    assert set(results) == {"scheduler", "server/server_1", "robot/arm_1"}
    for result in results.values():
        assert result.difference is None and not result.refused and result.decisions, result
