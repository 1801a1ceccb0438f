"""A node's process and its owner end together, whichever ends first and however; no Ray is needed for that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ros2_rfm_serving.ros.node.process import SUPERVISED

OWNER = """
import signal, sys, time
from pathlib import Path
from ros2_rfm_serving.factory.nodes import NodeSpec
from ros2_rfm_serving.operate import supervisor
from ros2_rfm_serving.operate.on_ray import actor
from ros2_rfm_serving.operate.on_ray.errand import Errand

actor.RESTART_S = 0.1
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
supervisor.command_of = lambda executable: [sys.executable, "-c", sys.argv[1]]
node = NodeSpec(name="server_1", executable="model_server_node", parameters={"factory_file": "elsewhere"})
told = Errand(node=node, files={"factory.yaml": "its text", "dds.xml": "<dds/>"}, environment={"ROS_DOMAIN_ID": "63"})
owner = actor.NodeActor(told)
life, num_bytes, read = "", 0, ""
while True:
    look = owner.look(life, num_bytes)
    life, num_bytes, read = look.life, look.read, read + look.log
    print(look.code, repr(read), flush=True)
    if sys.argv[2:] and "blocked" in read:
        killed, last = owner.end(life, num_bytes)
        print("ended", killed, repr(last.log), owner._folder.path.exists(), flush=True)
        break
    time.sleep(0.05)
"""
NODE = """
import os, sys, time
from ros2_rfm_serving.ros.node.process import end_with_parent
end_with_parent()
text = open(sys.argv[sys.argv.index("--params-file") + 1]).read()
print("up", os.getpid(), os.environ["ROS_DOMAIN_ID"], open(os.environ["FASTDDS_DEFAULT_PROFILES_FILE"]).read(), flush=True)
print(open(text.split('"factory_file": "')[1].split('"')[0]).read(), flush=True)
"""


@contextmanager
def owner_of(node: str, folder: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "TMPDIR": str(folder)}
    command = [sys.executable, "-c", OWNER, NODE + node, *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str], words: str) -> str:
    assert process.stdout
    return next(line for line in process.stdout if words in line)


def wait(until: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + 30.0
    while not until():
        assert time.monotonic() < end_s, what
        time.sleep(0.02)


def test_a_process_ends_with_its_owner_and_has_what_was_carried(tmp_path: Path) -> None:
    with owner_of("time.sleep(600)", tmp_path) as owner:
        line = said(owner, "its text\\n'")
        assert " 63 <dds/>" in line
        pid = int(line.partition("up ")[2].split()[0])
        owner.send_signal(signal.SIGKILL)
        wait(lambda: not Path(f"/proc/{pid}").exists(), "the process outlives its owner")


@pytest.mark.parametrize(("node", "code"), [("sys.exit(0)", 0), ("sys.exit(70)", 70), ("os.kill(os.getpid(), 9)", -9)])
def test_an_owner_ends_with_its_process_and_says_how_it_ended(tmp_path: Path, node: str, code: int) -> None:
    with owner_of(node, tmp_path) as owner:
        assert said(owner, f"{code} '")
        assert owner.wait(timeout=30) == 1, "whoever keeps it starts another"


def test_who_cannot_run_as_it_is_configured_is_not_started_again(tmp_path: Path) -> None:
    with owner_of("sys.exit(78)", tmp_path) as owner:
        assert said(owner, "78 '")
        time.sleep(0.5)  # five times what it would take
        assert owner.poll() is None


def test_an_end_in_order_leaves_nothing(tmp_path: Path) -> None:
    """Also where the owner has inherited that Ctrl-C is not for it, which is not for its process."""
    node = (
        "from ros2_rfm_serving.ros.node.process import Ending; import signal; Ending();"
        "print('blocked', signal.pthread_sigmask(signal.SIG_BLOCK, []), flush=True); time.sleep(600)"
    )
    with owner_of(node, tmp_path, "end") as owner:
        assert said(owner, "blocked") == "blocked set()\n"
        assert said(owner, "ended").startswith("ended False '")
        assert owner.wait(timeout=30) == 0 and not list(tmp_path.iterdir())


def test_both_end_with_whoever_started_the_owner(tmp_path: Path) -> None:
    """A Ray worker may live on when its node's part of Ray is killed, and another one have taken its place meanwhile."""
    starter = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"
    command = [sys.executable, "-c", starter, OWNER, NODE + "time.sleep(600)"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as started:
        pid = int(said(started, "its text\\n'").partition("up ")[2].split()[0])
        started.kill()
        wait(lambda: not Path(f"/proc/{pid}").exists(), "the process outlives who started its owner")


def test_who_starts_after_its_owner_has_gone_ends_whoever_takes_it_in() -> None:
    """Orphans are process 1's, or of one nearer that takes them in, as Ray's can."""
    program = "from ros2_rfm_serving.ros.node.process import end_with_parent; end_with_parent(); print('goes on')"
    for owner, ends in ((os.getpid(), False), (1, True)):
        environment = {**os.environ, SUPERVISED: str(owner)}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
        assert ("the supervisor is gone" in done.stderr) is ends is not ("goes on" in done.stdout), done
