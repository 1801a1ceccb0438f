"""The page's server on a real graph: its figures are the graph's, it looks at robots only while a page does, and orders arrive."""

from __future__ import annotations

import functools
import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rclpy
import simplejpeg
from lifecycle_msgs.srv import ChangeState
from rclpy.node import Node
from rfm_serving import msg, srv
from sensor_msgs.msg import CompressedImage, Image
from std_srvs.srv import Trigger

from ros2_rfm_serving.audit.chain import Checked, Page, records
from ros2_rfm_serving.monitoring.board import Board
from ros2_rfm_serving.monitoring.dashboard.app import Dashboard
from ros2_rfm_serving.monitoring.dashboard.serving import serving
from ros2_rfm_serving.operate.running import observing
from ros2_rfm_serving.ros.monitor.eyes import LEASE_S, Eyes
from ros2_rfm_serving.ros.monitor.hands import Hands
from ros2_rfm_serving.ros.monitor.words import Words
from ros2_rfm_serving.ros.node.audit import page_from
from ros2_rfm_serving.ros.wire import convert, qos
from ros2_rfm_serving.security.tokens import Tokens
from test.ros.spinning import living

TOKEN = "a-long-enough-token"
NAMES = qos.Names("plant")


class Plant(Node):
    """A robot, a server and a scheduler, as far as the graph knows them."""

    def __init__(self, context: rclpy.Context) -> None:
        super().__init__("plant_stand_in", context=context)
        self.asked: list[Any] = []
        publish = self.create_publisher
        self.schedule = publish(msg.Schedule, NAMES.schedule, qos.SCHEDULE)
        self.robot = publish(msg.RobotStatus, NAMES.robot("arm_1", "rfm/status"), qos.ROBOT_STATUS)
        self.chunk = publish(msg.ActionChunk, NAMES.robot("arm_1", "rfm/action_chunk"), qos.REPLY_SENT)
        self.image = publish(CompressedImage, NAMES.robot("arm_1", "camera/side/image/compressed"), qos.SENSOR)
        self._serve(Trigger, NAMES.robot("arm_1", "rfm/pause"), success=True, message="paused")
        self._serve(srv.AdmitRobot, NAMES.admit_robot, success=False, error_msg="no room")
        self._serve(ChangeState, NAMES.server("s1", "model_server/change_state"), success=True)
        self.create_timer(0.2, self._tell)

    def _serve(self, kind: Any, name: str, **answer: Any) -> None:
        def respond(request: Any, response: Any) -> Any:
            self.asked.append((name, request))
            for field, value in answer.items():
                setattr(response, field, value)
            return response

        self.create_service(kind, name, respond)

    def _tell(self) -> None:
        routes = [msg.Route(robot="arm_1", component="system1", server="s1", max_rate_hz=5.0, slo_s=0.5, task="push")]
        placement = msg.Placement(server="s1", model="m", components=["system1"], batch_size=8, max_sessions=8)
        self.schedule.publish(msg.Schedule(scheduler=3, epoch=2, factory="f", gap=0.25, placements=[placement], routes=routes))
        status = msg.RobotStatus(state=msg.RobotStatus.STREAMING, server="s1", action_rate_hz=12.5, staleness_s=0.125)
        status.header.frame_id = "arm_1"
        self.robot.publish(status)
        chunk = msg.ActionChunk(action_names=["x", "y"], execution_horizon=2)
        chunk.header.frame_id, chunk.id.component, chunk.id.sequence = "s1", "system1", 9
        chunk.chunk_robot = convert.tensor_to(np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], np.float32))
        chunk.served.queue_wait_s = 0.25
        self.chunk.publish(chunk)
        self.image.publish(CompressedImage(format="jpeg", data=simplejpeg.encode_jpeg(np.zeros((480, 640, 3), np.uint8))))


class Server(Node):
    def __init__(self, context: rclpy.Context) -> None:
        super().__init__("s1_stand_in", context=context)
        self._status = self.create_publisher(msg.ServerStatus, NAMES.server("s1", "status"), qos.SERVER_STATUS)
        self.create_timer(0.2, self._tell)

    def _tell(self) -> None:
        status = msg.ServerStatus(state=msg.ServerStatus.READY, model="m", emulated=True, load=0.5, latency_p99_s=0.375)
        status.header.frame_id = "s1"
        self._status.publish(status)


def wait(true: Callable[[], Any], seconds: float = 90.0) -> Any:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        if found := true():
            return found
        time.sleep(0.05)
    raise AssertionError("waited in vain")


class Client:
    def __init__(self, url: str, noted: list[dict[str, Any]]) -> None:
        self._url, self.noted = url, noted

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self._url + path, timeout=10) as answer:
            body = answer.read()
        return body if "cameras" in path else json.loads(body)

    def fleet(self) -> Any:
        with urllib.request.urlopen(f"{self._url}api/stream", timeout=10) as stream:
            return json.loads(next(line for line in stream if line.startswith(b"data:"))[5:])

    def order(self, **order: Any) -> tuple[int, Any]:
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        body = json.dumps({**order, "confirmed": True}).encode()
        request = urllib.request.Request(f"{self._url}api/control", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


@pytest.fixture
def client(ros_domain: int) -> Iterator[Client]:
    board, noted = Board([], []), list[dict[str, Any]]()
    with observing(board, "plant", discover=True) as node, closing(Words(node, NAMES)) as words:

        def note(kind: str, **body: Any) -> None:
            noted.append({"kind": kind, **body})
            words.note(body)

        page = Dashboard(board, Eyes(node, NAMES), Hands(node, NAMES), Tokens({"ada": TOKEN}), note)
        with serving(page, "127.0.0.1", 0) as url:
            yield Client(url, noted)


@pytest.fixture
def plant(ros_domain: int) -> Iterator[Plant]:
    with living(Plant, ros_domain) as made:
        yield made


def heard(client: Client) -> Any:
    """What the page shows, once it has heard all three."""
    fleet = client.fleet()
    rows = fleet["robots"].get("arm_1", {}), fleet["servers"].get("s1", {})
    return fleet if [row.get("state") for row in rows] == ["STREAMING", "ready"] and fleet["schedule"].get("factory") else None


def test_figures_are_the_graphs_and_a_server_that_goes_is_lost_at_once(client: Client, plant: Plant, ros_domain: int) -> None:
    with living(Server, ros_domain):
        fleet = wait(functools.partial(heard, client))
        arm, server = fleet["robots"]["arm_1"], fleet["servers"]["s1"]
        assert (arm["state"], arm["actions_hz"], arm["staleness_s"], arm["task"]) == ("STREAMING", 12.5, 0.125, "push")
        assert arm["emulated"] and (server["state"], server["load"], server["p99_s"], server["slo_s"]) == ("ready", 0.5, 0.375, 0.5)
        assert (fleet["schedule"]["factory"], fleet["schedule"]["gap"]) == ("f", 0.25)
        (route,) = client.get("api/schedule")["routes"]
        assert (route["robot"], route["server"], route["planned_hz"]) == ("arm_1", "s1", 5.0)
    wait(lambda: client.fleet()["servers"]["s1"]["lost"])
    assert client.fleet()["servers"]["s1"]["load"] is None
    wait(lambda: ["s1", "lost"] in [event[4:6] for event in client.fleet()["events"]])
    with living(Server, ros_domain):
        wait(lambda: client.fleet()["servers"]["s1"]["state"] == "ready")


def test_a_robot_is_looked_at_only_while_a_page_does(client: Client, plant: Plant) -> None:
    wait(lambda: client.fleet()["robots"].get("arm_1", {}).get("state"))
    assert plant.chunk.get_subscription_count() == plant.image.get_subscription_count() == 0, "the fleet's page asks for neither"
    told = wait(lambda: (page := client.get("api/robots/arm_1"))["chunk"] and page["cameras"] and page)
    assert told["chunk"]["columns"] == [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]] and told["chunk"]["horizon"] == 2
    decision = told["decisions"][0]
    assert (decision["server"], decision["sequence"], decision["queue_s"]) == ("s1", 9, 0.25)
    picture = wait(lambda: client.get("api/robots/arm_1/cameras/side"))
    assert simplejpeg.decode_jpeg_header(picture)[:2] == (180, 240)
    assert plant.chunk.get_subscription_count() == plant.image.get_subscription_count() == 1
    wait(lambda: not plant.chunk.get_subscription_count() and not plant.image.get_subscription_count(), LEASE_S + 20.0)


class ForeignRobot(Node):
    """Its camera has a topic elsewhere, and sends raw images."""

    def __init__(self, context: rclpy.Context) -> None:
        super().__init__("robot", namespace=NAMES.robot("arm_1", "").rstrip("/"), context=context)
        self.create_subscription(Image, "/cell/overhead/image_raw", lambda image: None, qos.SENSOR)
        self.image = self.create_publisher(Image, "/cell/overhead/image_raw", qos.SENSOR)
        self.robot = self.create_publisher(msg.RobotStatus, NAMES.robot("arm_1", "rfm/status"), qos.ROBOT_STATUS)
        self.create_timer(0.2, self._tell)

    def _tell(self) -> None:
        status = msg.RobotStatus(state=msg.RobotStatus.STREAMING)
        status.header.frame_id = "arm_1"
        self.robot.publish(status)
        self.image.publish(Image(height=480, width=640, encoding="bgr8", step=1920, data=bytes(480 * 1920)))


def test_a_raw_camera_has_pictures_wherever_its_topic_is_and_only_while_somebody_looks(client: Client, ros_domain: int) -> None:
    with living(ForeignRobot, ros_domain) as robot:
        wait(lambda: client.fleet()["robots"].get("arm_1", {}).get("state"))
        assert robot.image.get_subscription_count() == 1, "the robot's own"
        told = wait(lambda: (page := client.get("api/robots/arm_1"))["cameras"] and page)
        assert told["cameras"] == ["cell.overhead"] and told["offers"] == {"tasks": False, "reset": False}
        picture = wait(lambda: client.get("api/robots/arm_1/cameras/cell.overhead"))
        assert simplejpeg.decode_jpeg_header(picture)[:2] == (180, 240) and len(picture) < 20_000
        wait(lambda: robot.image.get_subscription_count() == 1, LEASE_S + 20.0)


def test_orders_arrive_and_their_outcome_is_told_and_noted(client: Client, plant: Plant, ros_domain: int) -> None:
    with living(Server, ros_domain):
        wait(functools.partial(heard, client))
        assert client.order(action="pause", target="arm_1") == (200, {"done": True, "message": "paused"})
        assert client.order(action="admit", target="arm_2", task="push") == (409, {"done": False, "message": "no room"})
        assert client.order(action="drain", target="s1")[0] == 200
        assert client.order(action="resume", target="arm_1")[0] == 409, "nobody offers it here"
    asked = dict(plant.asked)
    assert asked[NAMES.admit_robot].robot == "arm_2" and asked[NAMES.server("s1", "model_server/change_state")].transition.id == 4
    assert [note["outcome"] for note in client.noted] == ["done", "failed", "done", "failed"]
    assert "is not there" in client.noted[-1]["message"] and {note["who"] for note in client.noted} == {"ada"}


class Auditor(Node):
    def __init__(self, context: rclpy.Context) -> None:
        super().__init__("auditor_stand_in", context=context)
        self.pages: list[Page] = []
        self.create_subscription(
            msg.AuditPage, NAMES.dashboard_audit, lambda message: self.pages.append(page_from(message)), qos.AUDIT
        )

    @property
    def records(self) -> list[dict[str, Any]]:
        return [record for page in self.pages for record in records(page)]


def test_what_people_order_is_in_the_audit_log(client: Client, plant: Plant, ros_domain: int) -> None:
    with living(Auditor, ros_domain) as auditor:
        wait(lambda: client.fleet()["robots"].get("arm_1", {}).get("state") and auditor.pages)
        client.order(action="pause", target="arm_1")
        client.order(action="abort", target="arm_9")
        persons = wait(lambda: (heard := [one for one in auditor.records if one["kind"] == "operator_command"])[1:] and heard)
    assert [(one["command"], one["operator"], one["done"]) for one in persons] == [
        ("pause arm_1", "ada", True),
        ("abort arm_9", "ada", False),
    ]
    checked = Checked("dashboard/page", auditor.pages[0].run)
    for page in auditor.pages:
        checked.add(page)
    assert not checked.flaws and checked.begins == 0


def test_the_command_says_where_it_is_and_ends_at_once(repository: Path, ros_domain: int) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "dashboard", "--port"]
    page = subprocess.Popen([*command, "0"], cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert page.stdout is not None
        said = page.stdout.readline() + page.stdout.readline()
        found = re.search(r"dashboard: http://127\.0\.0\.1:(\d+)/\n.*#token=\S{32}\n", said)
        assert found, said
        done = subprocess.run([*command, found[1]], cwd=repository, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2 and "cannot be listened on" in done.stderr and "choose another port" in done.stderr
        stream = urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/api/stream", timeout=10)
        page.send_signal(signal.SIGINT)
        rest, _ = page.communicate(timeout=30)
        assert page.returncode == 0 and not rest, rest
        stream.close()
    finally:
        page.kill()
