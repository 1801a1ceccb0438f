"""The page in a real Chromium: its numbers are the graph's, a killed server shows, acting takes the token, words stay words."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import rclpy
from playwright.sync_api import Browser, Page, expect, sync_playwright
from rfm_serving import msg
from sensor_msgs.msg import Image

from lab.benchmarks.dashboard.report import _await_all
from lab.benchmarks.processes import process
from ros2_rfm_serving.monitoring.board import Board
from ros2_rfm_serving.monitoring.dashboard.app import Dashboard
from ros2_rfm_serving.monitoring.dashboard.serving import serving
from ros2_rfm_serving.operate.page_why import causes_of
from ros2_rfm_serving.operate.running import observing
from ros2_rfm_serving.ros.monitor.eyes import Eyes
from ros2_rfm_serving.ros.monitor.hands import Hands
from ros2_rfm_serving.ros.wire import qos
from ros2_rfm_serving.security.tokens import Tokens
from ros2_rfm_serving.types import MAX_INSTRUCTION_CHARACTERS
from test.operate.test_prometheus import free_port
from test.ros.test_dashboard import NAMES, TOKEN, Plant, Server, living
from test.system.test_factory import EMULATED, pids, rfm_up
from test.unit.monitoring.dashboard import test_app

QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
QUIET += ("--disable-component-update", "--disable-sync")
SHOWN_WITHIN_S = 2.0
EVIL = '<img src=x onerror="window.harmed=1"><script>window.harmed=1</script>'


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=list(QUIET))
        yield started
        started.close()


@contextmanager
def opened(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """A page without errors that asks nothing of other hosts."""
    context = browser.new_context(**options)
    page = context.new_page()
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: None if request.url.startswith((url, "blob:", "data:")) else said.append(request.url))
    try:
        page.goto(url)
        yield page
    finally:
        context.close()
    # What the server refuses on purpose, and what fails because it has ended, the browser calls errors as well.
    assert not [line for line in said if "Failed to load resource" not in line], said


@pytest.fixture
def url(ros_domain: int) -> Iterator[str]:
    board = Board([], [])
    with observing(board, "plant", discover=True) as node:
        note: Callable[..., None] = lambda kind, **body: None  # noqa: E731
        why = partial(causes_of, namespace="plant", enclave=None)
        page = Dashboard(board, Eyes(node, NAMES), Hands(node, NAMES), Tokens({"ada": TOKEN}), note, why=why)
        with serving(page, "127.0.0.1", 0) as at:
            yield at


class Refuser(Plant):
    """Refuses something now and then, and has a raw camera."""

    def __init__(self, context: rclpy.Context) -> None:
        super().__init__(context)
        self._refused = 0
        self.refuser = self.create_publisher(msg.RobotStatus, NAMES.robot("arm_3", "rfm/status"), qos.ROBOT_STATUS)
        self.raw = self.create_publisher(Image, NAMES.robot("arm_3", "camera/front/image_raw"), qos.SENSOR)
        self.create_timer(0.2, self._refuse)

    def _refuse(self) -> None:
        self._refused += 1
        status = msg.RobotStatus(state=msg.RobotStatus.STREAMING, phase=msg.RobotStatus.EXECUTING, task="push")
        status.refused = [msg.Counter(name="out_of_limits", count=self._refused)]
        status.header.frame_id = "arm_3"
        self.refuser.publish(status)
        self.raw.publish(Image(height=480, width=640, encoding="rgb8", step=1920, data=bytes(480 * 1920)))


class Talker(Plant):
    """Says evil things, too."""

    def __init__(self, context: rclpy.Context) -> None:
        super().__init__(context)
        self.evil = self.create_publisher(msg.RobotStatus, NAMES.robot("arm_2", "rfm/status"), qos.ROBOT_STATUS)
        self.create_timer(0.2, self._say)

    def _say(self) -> None:
        status = msg.RobotStatus(state=msg.RobotStatus.STALLED, reason=EVIL, task=EVIL, verdict=EVIL, instruction=EVIL)
        status.header.frame_id = "arm_2"
        self.evil.publish(status)


def figure(page: Page, name: str, key: str) -> Any:
    return page.locator(f'[data-key="{name}"] [data-figure="{key}"]')


def test_numbers_on_the_page_are_the_graphs(browser: Browser, url: str, ros_domain: int) -> None:
    with living(Plant, ros_domain), living(Server, ros_domain), opened(browser, url) as page:
        expect(figure(page, "arm_1", "actions")).to_have_text("12.5", timeout=30_000)
        expect(figure(page, "arm_1", "staleness")).to_have_text("125 ms")
        expect(figure(page, "s1", "load")).to_have_text("50 %")
        expect(figure(page, "s1", "latency")).to_have_text("375 ms / 500 ms")
        expect(page.locator('[data-figure="gap"]')).to_have_text("25.0 %")
        expect(page.locator("#factory")).to_have_text("f")
        for card in ("arm_1", "s1"):
            expect(page.locator(f'[data-key="{card}"]').get_by_text("EMULATED")).to_be_visible()
        expect(page.locator('[data-key="arm_1"] img')).to_be_visible(timeout=20_000)
        page.goto(f"{url}#/schedule")
        expect(page.locator("tbody tr")).to_contain_text("arm_1")
        expect(page.locator("tbody tr td").nth(4)).to_have_text("5.0")
        page.goto(f"{url}#/robot/arm_1")
        expect(page.get_by_text("3 actions, horizon 2, 0 held fixed").first).to_be_visible(timeout=20_000)
        expect(page.locator("canvas")).to_have_count(3, timeout=20_000)
        page.goto(f"{url}#/server/s1")
        expect(page.locator("canvas")).to_have_count(4, timeout=20_000)


def test_a_refusal_is_shown_in_words_with_a_link_to_what_helps_and_events_are_filtered_by_cause(
    browser: Browser, url: str, ros_domain: int
) -> None:
    with living(Refuser, ros_domain), living(Server, ros_domain), opened(browser, url) as page:
        refusal = page.locator('[data-key="arm_3"] .why a')
        expect(refusal).to_contain_text("actions are outside of the limits", timeout=30_000)
        expect(page.locator('[data-key="arm_1"] .pill')).to_have_text("ready, idle")
        expect(page.locator('[data-key="arm_3"] img')).to_be_visible(timeout=30_000)  # of raw images
        page.goto(f"{url}#/robot/arm_3")
        page.get_by_role("button", name="Why?").click()
        unlock = page.get_by_role("dialog")
        unlock.get_by_label("Token").fill(TOKEN)
        unlock.get_by_role("button", name="Unlock").click()
        expect(page.locator(".causes")).to_contain_text("looking for the causes")
        expect(page.locator(".causes")).not_to_contain_text("looking for the causes", timeout=60_000)
        expect(page.locator(".causes .problem")).to_have_count(0)
        expect(page.locator(".causes > *")).not_to_have_count(0)
        page.goto(f"{url}#/")
        refusal.click()
        expect(page.locator("dl.facts")).to_contain_text("compare units and limits of the robot's file")
        expect(page.locator("dl.facts")).to_contain_text("arm_3")
        page.goto(f"{url}#/events")
        events = page.locator(".events li")
        expect(page.locator('.events li[data-cause="refused"]')).not_to_have_count(0)
        page.locator('button[data-cause="lost"]').click()
        expect(page.locator('.events li[data-cause="refused"]')).to_have_count(0)
        page.locator('button[data-cause="refused"]').click()
        page.locator('button[data-cause="lost"]').click()
        expect(page.locator('.events li:not([data-cause="refused"])')).to_have_count(0)
        page.get_by_label("Filter events").fill("nobody")
        expect(events).to_have_count(0)


def test_thirty_robots_are_above_the_fold_and_every_tile_has_a_tooltip(browser: Browser, ros_domain: int) -> None:
    port = free_port()
    serve = ("ros2_rfm_serving.cli", "dashboard", "--port", str(port), "--domain", str(ros_domain))
    with process("lab.benchmarks.dashboard.stand_in", "30"), process(*serve):
        _await_all(port, 30)
        with opened(browser, f"http://127.0.0.1:{port}/", viewport={"width": 1280, "height": 720}) as page:
            tiles = page.locator(".robots .tile")
            expect(tiles).to_have_count(30, timeout=60_000)
            expect(tiles.first.locator(".does")).to_contain_text("do ", timeout=30_000)
            ends = page.evaluate(
                "[...document.querySelectorAll('.robots .tile')].map((tile) => tile.getBoundingClientRect().bottom)"
            )
            assert max(ends) <= 720, max(ends)
            cut = "[...document.querySelectorAll('.tile h3')].filter((name) => name.scrollWidth > name.clientWidth).length"
            assert page.evaluate("scrollY") == 0 and page.evaluate(cut) == 0, "names are shown in full"
            shown = ".card, .tiles > div, .figures > div, button.act"
            for view in ("", "servers", "schedule", "robot/robot_1", "server/server_1", "events", "bring"):
                page.goto(f"http://127.0.0.1:{port}/#/{view}")
                page.wait_for_timeout(500)
                bare = page.evaluate(
                    f"[...document.querySelectorAll('{shown}')].filter((one) => !one.title).map((one) => one.outerHTML)"
                )
                assert not bare, (view, bare)
            page.goto(f"http://127.0.0.1:{port}/")
            tip = page.locator('[data-key="robot_7"]').get_attribute("title", timeout=20_000)
            assert tip and "robot_7: " in tip and "staleness: " in tip and "in " in tip


def test_bring_your_robot_checks_what_is_pasted_with_the_token(browser: Browser, repository: Path, ros_domain: int) -> None:
    port = free_port()
    descriptor = (repository / "config" / "factory_quickstart.yaml").read_text()
    serve = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli", "dashboard", "--port", str(port)]
    page_process = subprocess.Popen(serve, cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert page_process.stdout is not None
        token = next(found[1] for line in page_process.stdout if (found := re.search(r"#token=(\S+)", line)))
        with opened(browser, f"http://127.0.0.1:{port}/") as page:
            page.goto(f"http://127.0.0.1:{port}/#/bring")
            page.get_by_label("Descriptor").fill(descriptor.replace("robot_fleet", "robot_flet"))
            page.get_by_role("button", name="Check", exact=True).click()
            unlock = page.get_by_role("dialog")
            unlock.get_by_label("Token").fill(token)
            unlock.get_by_role("button", name="Unlock").click()
            verdict = page.locator(".summary")
            expect(verdict).to_have_text("not valid", timeout=60_000)
            expect(page.locator(".output")).to_contain_text("robot_flet")
            page.get_by_label("Descriptor").fill(descriptor)
            page.get_by_role("button", name="Check", exact=True).click()
            expect(verdict).to_have_text("valid", timeout=60_000)
            expect(page.get_by_text("In a shell: rfm check factory.yaml")).to_be_visible()
    finally:
        page_process.send_signal(signal.SIGINT)
        page_process.communicate(timeout=60)


def test_of_the_silent_no_figure_stays(browser: Browser, url: str, ros_domain: int) -> None:
    with opened(browser, url) as page:
        expect(page.get_by_text("No robot was heard.")).to_be_visible(timeout=20_000)
        with living(Plant, ros_domain):
            expect(figure(page, "arm_1", "actions")).to_have_text("12.5", timeout=30_000)
        expect(figure(page, "arm_1", "actions")).to_have_text("\N{EN DASH}", timeout=20_000)
        expect(page.locator('[data-key="arm_1"] .pill')).to_have_text("stale")
        expect(page.locator("aside")).to_contain_text("arm_1 lost silent for")


def test_words_of_others_stay_words(browser: Browser, url: str, ros_domain: int) -> None:
    with living(Talker, ros_domain), opened(browser, url) as page:
        for view in ("", "events", "robot/arm_2"):
            page.goto(f"{url}#/{view}")
            if view != "events":
                expect(page.get_by_text(EVIL).first).to_be_visible(timeout=30_000)
            page.wait_for_timeout(700)
            assert page.evaluate("window.harmed") is None and page.locator('img[src="x"]').count() == 0
        page.goto(f"{url}#/robot/{'%3Cimg%20src=x%20onerror=window.harmed=1%3E'}")
        expect(page.get_by_role("heading", level=1)).to_contain_text("<img")
        assert page.evaluate("window.harmed") is None


def test_a_person_mistypes_a_token_pastes_too_long_a_task_and_another_browser_sees_what_was_given(browser: Browser) -> None:
    factory = test_app.Page()
    with (
        serving(factory.dashboard, "127.0.0.1", 0) as at,
        opened(browser, at) as page,
        opened(browser, at) as other,
    ):
        other.goto(f"{at}#/events")
        page.goto(f"{at}#/robot/arm_1")
        page.get_by_role("button", name="Give a task").click()
        dialog = page.get_by_role("dialog")
        for wrong in ("", "a-long-enough\N{HORIZONTAL ELLIPSIS}"):
            dialog.get_by_label("Token").fill(wrong)
            dialog.get_by_role("button", name="Unlock").click()
            expect(dialog.get_by_text("That is no token")).to_be_visible()
        dialog.get_by_label("Token").fill(TOKEN)
        dialog.get_by_role("button", name="Unlock").click()
        expect(dialog.get_by_text("the robot offers no reset")).to_be_visible()
        dialog.get_by_label("Instruction").fill("x" * (MAX_INSTRUCTION_CHARACTERS + 1))
        dialog.get_by_role("button", name="Give the task").click()
        expect(dialog.get_by_text(f"at most {MAX_INSTRUCTION_CHARACTERS} characters")).to_be_visible()
        dialog.get_by_label("Instruction").fill("x" * MAX_INSTRUCTION_CHARACTERS)
        dialog.get_by_role("button", name="Give the task").click()
        expect(dialog).to_be_hidden()
        assert factory.graph.wanted.instruction == "x" * MAX_INSTRUCTION_CHARACTERS and not factory.graph.wanted.reset
        expect(other.locator(".events")).to_contain_text("task by ada: done")
        page.goto(f"{at}#/robot/arm_2")
        page.get_by_role("button", name="Give a task").click()
        expect(dialog.get_by_label("Instruction")).to_have_value("")


def test_it_fits_a_phone_follows_dark_and_light_and_needs_no_mouse(browser: Browser, url: str, ros_domain: int) -> None:
    shades = set()
    with living(Plant, ros_domain), living(Server, ros_domain):
        for scheme in ("light", "dark"):
            with opened(browser, url, viewport={"width": 390, "height": 844}, color_scheme=scheme) as page:
                expect(figure(page, "arm_1", "actions")).to_have_text("12.5", timeout=30_000)
                for view in ("", "servers", "schedule", "events", "robot/arm_1", "server/s1"):
                    page.goto(f"{url}#/{view}")
                    page.wait_for_timeout(1200)
                    assert page.evaluate("document.documentElement.scrollWidth") <= 390, view
                shades.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert len(shades) == 2
        with opened(browser, url) as page:
            expect(figure(page, "arm_1", "actions")).to_have_text("12.5", timeout=30_000)
            page.keyboard.press("3")
            expect(page.get_by_role("heading", name="Schedule", exact=True)).to_be_visible()
            page.keyboard.press("/")
            page.keyboard.type("nobody")
            expect(page.locator("tbody tr")).to_have_count(0)
            page.goto(f"{url}#/robot/arm_1")
            page.get_by_role("button", name="Pause").focus()
            page.keyboard.press("Enter")
            expect(page.get_by_role("dialog")).to_be_visible()
            page.keyboard.press("Escape")
            expect(page.get_by_role("dialog")).to_have_count(0)


def order(page: Page, action: str) -> None:
    page.get_by_role("button", name=action, exact=True).first.click()
    page.get_by_role("dialog").get_by_role("button", name=action, exact=True).click()


@pytest.mark.timeout(300)
def test_a_killed_server_shows_and_a_robot_is_paused_by_whoever_has_the_token(
    browser: Browser, repository: Path, tmp_path: Path, ros_domain: int
) -> None:
    port, logs = free_port(), tmp_path / "logs"
    with rfm_up(repository, logs, EMULATED, "--dashboard", str(port), domain=ros_domain) as factory:
        assert factory.stdout is not None
        token = next(found[1] for line in factory.stdout if (found := re.search(r"#token=(\S+)", line)))
        with opened(browser, f"http://127.0.0.1:{port}/") as page:
            pill = page.locator('[data-key="server_1"] .pill')
            took_s = []
            for _ in range(3):
                expect(pill).to_have_text("ready", timeout=60_000)
                page.wait_for_timeout(3000)
                (pid,) = pids(f"{logs}/server_1.")
                os.kill(pid, signal.SIGKILL)
                begin_s = time.monotonic()
                expect(pill).not_to_have_text("ready", timeout=10_000)
                took_s.append(time.monotonic() - begin_s)
            print(f"a killed server shows after {', '.join(f'{s:.2f}' for s in took_s)} s")
            assert min(took_s) < SHOWN_WITHIN_S, took_s
            expect(page.locator("aside")).to_contain_text("server_1 lost its liveliness ended")
            expect(pill).to_have_text("ready", timeout=60_000)

            page.goto(f"http://127.0.0.1:{port}/#/robot/idle_arm_1")
            state = page.locator(".title .pill")
            expect(state).to_have_text("streaming", timeout=60_000)
            page.get_by_role("button", name="Pause").click()
            unlock = page.get_by_role("dialog")
            unlock.get_by_label("Token").fill("a-wrong-token-of-mine")
            unlock.get_by_role("button", name="Unlock").click()
            expect(unlock.get_by_text("the token is missing or wrong")).to_be_visible()
            unlock.get_by_label("Token").fill(token)
            unlock.get_by_role("button", name="Unlock").click()
            page.get_by_role("dialog").get_by_role("button", name="Pause").click()
            expect(state).to_have_text("paused", timeout=20_000)
            order(page, "Resume")
            expect(state).to_have_text("streaming", timeout=30_000)
            expect(page.locator(".events")).to_contain_text("resume by operator: done")

            page.get_by_role("button", name="Give a task").click()
            task = page.get_by_role("dialog")
            task.get_by_label("Instruction").fill("wave")
            task.get_by_role("button", name="Give the task").click()
            expect(page.locator(".does")).to_have_text("wave", timeout=60_000)  # and the foreman gives way
            order(page, "Cancel task")
            expect(page.locator(".does")).not_to_have_text("wave", timeout=30_000)
            expect(page.locator(".events")).to_contain_text("task by operator: ended canceled")

            page.goto(f"http://127.0.0.1:{port}/#/server/server_1")
            order(page, "Drain")
            expect(page.locator(".card .pill")).to_have_text("draining", timeout=20_000)
            order(page, "Activate")
            expect(page.locator(".card .pill")).to_have_text("ready", timeout=30_000)
            os.killpg(factory.pid, signal.SIGINT)
            expect(page.locator("#link")).to_contain_text("offline", timeout=60_000)


def test_three_hundred_robots_leave_the_page_smooth(browser: Browser, ros_domain: int) -> None:
    port = free_port()
    serve = ("ros2_rfm_serving.cli", "dashboard", "--port", str(port), "--domain", str(ros_domain))
    with process("lab.benchmarks.dashboard.stand_in", "300"), process(*serve):
        _await_all(port, 300)
        with opened(browser, f"http://127.0.0.1:{port}/") as page:
            expect(page.locator(".dense tbody tr")).to_have_count(300, timeout=60_000)
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable")

            def spent_s() -> float:
                metrics = session.send("Performance.getMetrics")["metrics"]
                return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))

            before_s = spent_s()
            page.wait_for_timeout(8000)
            share = (spent_s() - before_s) / 8.0
            print(f"the page's own thread is busy {share:.0%} of the time")
            assert share < 0.3
            page.keyboard.press("/")
            page.keyboard.type("robot_300")
            expect(page.locator(".dense tbody tr")).to_have_count(1)
