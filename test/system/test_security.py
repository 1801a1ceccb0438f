"""A factory with certificates, as a user starts it: no secret of it is on a command line, in a log, in a recording or on a page."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from mcap.reader import make_reader
from websockets.exceptions import InvalidHandshake
from websockets.sync.client import connect

from ros2_rfm_serving import wire
from ros2_rfm_serving.security.tls import client_context
from test.ports import free_port
from test.waiting import eventually

RFM = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.cli"]
NODE = [sys.executable, "-W", "ignore", "-m", "ros2_rfm_serving.ros.executables", "model_server_node", "--ros-args"]


def rfm(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [*RFM, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240, check=False)


@contextlib.contextmanager
def started(command: list[str], cwd: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=cwd, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield process
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0, log.read_text()
    finally:
        process.kill()


def secrets_of(folder: Path) -> set[str]:
    """Return every line of every file that only its owner may read, without those that are part of a public key, as certificates
    have it, too."""
    keys = [*folder.rglob("key.pem"), *folder.glob("private/*.pem")]
    lines = {line.strip() for file in keys for line in _secret_lines(file.read_text())}
    lines |= {line.strip() for file in folder.glob("tokens/**/*") if file.is_file() for line in file.read_text().splitlines()}
    words = {word for line in lines if not line.startswith(("#", "-----")) for word in line.split()}
    return {word.removeprefix("sha256:") for word in words if len(word) > 20}


def _secret_lines(pem: str) -> list[str]:
    body = [line for line in pem.splitlines() if not line.startswith("-----")]
    if "PRIVATE KEY" not in pem:
        return body
    public = load_pem_private_key(pem.encode(), None).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return [line for line in body if base64.b64decode(line) not in public]


def command_lines(processes: list[subprocess.Popen[bytes]]) -> str:
    """Of these and of all that they started, with the environment that others of this user can read; when the robot is there."""
    ids = {process.pid for process in processes}
    assert eventually(lambda: "robot_node" in _lines(ids), 90.0), _lines(ids)
    return _lines(ids)


def _lines(ids: set[int]) -> str:
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            parent = int(re.search(r"PPid:\s*(\d+)", (place / "status").read_text())[1])  # type: ignore[index]
            if int(place.name) in ids or parent in ids:
                found += [(place / "cmdline").read_text().replace("\0", " "), (place / "environ").read_text(errors="replace")]
    return "\n".join(found)


def told_in(folder: Path) -> str:
    """All that was written, recordings uncompressed."""
    said = [file.read_text(errors="replace") for file in folder.rglob("*") if file.is_file()]
    bags = list(folder.rglob("*.mcap"))
    assert bags, "it was recorded"
    for bag in bags:
        with bag.open("rb") as stream:
            said += [message.data.decode(errors="replace") for _, _, message in make_reader(stream).iter_messages()]
    return "\n".join(said)


def get(url: str, trusted: ssl.SSLContext, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20, context=trusted) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def text_of(url: str, trusted: ssl.SSLContext) -> str:
    with urllib.request.urlopen(url, timeout=20, context=trusted) as answer:
        return str(answer.read().decode())


def ordered(url: str, trusted: ssl.SSLContext, token: str, action: str, target: str) -> dict[str, object]:
    """What comes of it, through the page."""
    body = json.dumps({"action": action, "target": target, "confirmed": True}).encode()
    headers = {"content-type": "application/json", "Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=90, context=trusted) as answer:
            return dict(json.loads(answer.read()))
    except urllib.error.HTTPError as error:
        return dict(json.loads(error.read()))


def until(url: str, trusted: ssl.SSLContext, process: subprocess.Popen[bytes]) -> None:
    def served() -> bool:
        with contextlib.suppress(OSError):
            return get(url, trusted) == 200
        return False

    assert eventually(lambda: process.poll() is not None or served(), 90.0) and process.poll() is None, f"{url} is not served"


def unproven(figures: str) -> list[str]:
    """Whatever somebody has counted as such, who is looked at or who looks."""
    return [line for line in figures.splitlines() if "unproven" in line and not line.startswith("#")]


def test_a_robot_joins_a_factory_with_certificates_under_its_own(repository: Path, tmp_path: Path, ros_domain: int) -> None:
    security, factory, logs = tmp_path / "security", repository / "config" / "factory_emulated.yaml", tmp_path / "logs"
    assert rfm("security", "init", factory, security, cwd=repository).returncode == 0
    port, arm = free_port(), ("--task", "idle_arm", "--name", "arm_2")
    up = [*RFM, "up", str(factory), "--security", str(security), "--logs", str(logs), "--metrics", str(port)]
    figures, trusted = f"https://127.0.0.1:{port}/metrics", client_context(security / "public" / "ca.cert.pem", "test")
    joining = ["robot", str(factory), *arm, "--security", str(security), "--logs", str(tmp_path / "robot")]
    with started(up, repository, tmp_path / "up.txt") as running:
        until(figures, trusted, running)
        refused = rfm(*joining, cwd=repository)
        add = ("security", "add", str(factory), str(security), "arm_2", "--task", "idle_arm")
        assert refused.returncode == 2, refused.stderr
        said = " ".join(refused.stderr.split())
        assert "arm_2 has no certificate there" in said and f"rfm {' '.join(add)}" in said
        added = rfm(*add, cwd=repository)
        assert added.returncode == 0 and "start the Zenoh router again" in added.stdout, added.stderr
        served = re.compile(r'rfm_robot_answers_total\{[^}]*robot="arm_2"[^}]*\} ([1-9]\d*)')
        with started([*RFM, *joining], repository, tmp_path / "robot.txt"):
            assert eventually(lambda: served.search(text_of(figures, trusted)), 90.0), (tmp_path / "robot.txt").read_text()
            reporting = ("/rfm/scheduler", "/rfm/servers/server_1/model_server", "/idle_arm_1/robot", "/arm_2/robot")
            own = re.compile(r'rfm_certificate_left_seconds\{[^}]*process="([^"]*)"')
            assert eventually(lambda: {*reporting} <= {*own.findall(text_of(figures, trusted))}, 60.0), text_of(figures, trusted)
        told_now = text_of(figures, trusted)
        assert not unproven(told_now) and 'rfm_proof{statuses="checked"} 1.0' in told_now
    told = (tmp_path / "robot.txt").read_text()
    assert "arm_2: admitted" in told and "arm_2: released" in told
    assert rfm("security", "check", security, cwd=repository).returncode == 0


def test_no_secret_is_told_anywhere(repository: Path, tmp_path: Path, ros_domain: int) -> None:
    security, factory, logs = tmp_path / "security", repository / "config" / "factory_emulated.yaml", tmp_path / "told"
    logs.mkdir()
    made = rfm("security", "init", factory, security, "--client", "tablet", cwd=repository)
    assert made.returncode == 0 and "enclaves/<member>" in made.stdout, made.stderr
    page, metrics, gateway = free_port(), free_port(), free_port()
    people, token = tmp_path / "people", (security / "tokens" / "clients" / "tablet").read_text().strip()
    people.touch(0o600)
    people.write_text(f"ada {token}\n")
    up = [*RFM, "up", str(factory), "--security", str(security), "--logs", str(logs / "logs"), "--record-to", str(logs / "bag")]
    up += ["--dashboard", str(page), "--metrics", str(metrics), "--token-file", str(people), "--log-level", "debug"]
    door = {"server": "extra", "model": "emulated/arm-policy", "gpu_type": "EMULATED", "gateway_port": gateway}
    door |= {"gateway_tls": security / "enclaves" / "server_1", "gateway_token_file": security / "tokens" / "door"}
    node = [*NODE, *[word for name, value in door.items() for word in ("-p", f"{name}:={value}")], "--log-level", "debug"]
    trusted = client_context(security / "public" / "ca.cert.pem", "test")
    with started(up, repository, logs / "up.txt") as factory_up, started(node, repository, logs / "door.txt") as server:
        until(f"https://127.0.0.1:{page}/", trusted, factory_up)
        until(f"https://127.0.0.1:{gateway}/readyz", trusted, server)
        until(f"https://127.0.0.1:{metrics}/metrics", trusted, factory_up)
        assert get(f"https://127.0.0.1:{page}/api/whoami", trusted, Authorization=f"Bearer {token}") == 200
        assert get(f"https://127.0.0.1:{page}/api/whoami", trusted, Authorization=f"Bearer {token}x") == 401
        for url in (f"http://127.0.0.1:{page}/", f"http://127.0.0.1:{gateway}/readyz"):
            with pytest.raises(OSError):
                urllib.request.urlopen(url, timeout=20)
        key = {"Authorization": f"Api-Key {token}"}
        with connect(f"wss://127.0.0.1:{gateway}", ssl=trusted, additional_headers=key) as tablet:
            tablet.recv(timeout=90)
            images = {"front": np.zeros((8, 8, 3), np.uint8), "side": np.zeros((8, 8, 3), np.uint8)}
            tablet.send(wire.packer().pack({"state": np.zeros(39), "prompt": "stay", **images}))
            assert isinstance(tablet.recv(timeout=90), bytes)
        with pytest.raises(InvalidHandshake):  # 401, or the end of the connection where that overtakes it
            connect(f"wss://127.0.0.1:{gateway}", ssl=trusted, additional_headers={"Authorization": f"Api-Key {token}x"})
        seen = command_lines([factory_up, server])
        figures = f"https://127.0.0.1:{metrics}/metrics"
        assert eventually(lambda: 'rfm_robot_up{robot="idle_arm_1"} 1.0' in text_of(figures, trusted), 90.0)
        served = re.compile(r'rfm_server_replies_total\{server="server_1"\} ([1-9]\d*)')
        assert eventually(lambda: served.search(text_of(figures, trusted)), 90.0), "robots open sessions with their certificates"
        recorder = re.compile(r"rfm_recorder_up\{[^}]*\} 1.0")
        assert eventually(lambda: recorder.search(text_of(figures, trusted)), 30.0), "the recorder reports with its certificate"
        told_now = text_of(figures, trusted)
        nobodys = "it was started without a certificate, and is not shown as if it were of the factory"
        assert (
            all(re.search(r'\{about="(extra|processes)"\}', line) for line in unproven(told_now))
            and 'rfm_server_up{server="extra"} 1' not in told_now
        ), nobodys
        orders = f"https://127.0.0.1:{page}/api/control"
        for action, target in (("pause", "idle_arm_1"), ("resume", "idle_arm_1"), ("drain", "server_1"), ("activate", "server_1")):
            assert (done := ordered(orders, trusted, token, action, target))["done"], done
        time.sleep(2.0)  # in which everybody says how it is
    secrets, told = secrets_of(security), told_in(logs)
    assert token in secrets and len(secrets) > 20
    assert not [word for word in secrets if word in seen], "on a command line or in an environment"
    assert not [word for word in secrets if word in told], "in a log or a recording"
    assert "PRIVATE KEY" not in told
    assert "certificate ends in, days" in told, "which /diagnostics does say"
    done = rfm("security", "check", security, cwd=repository)
    assert done.returncode == 0 and "nothing is wrong" in done.stdout
