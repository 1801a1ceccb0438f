"""Ray's own ports with certificates of `rfm security`, docs/security.md: who has none of this authority does not come in."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from ros2_rfm_serving.security.authority import Authority, utc_now
from ros2_rfm_serving.security.folder import CERTIFICATE, IDENTITY_CA, KEY, write_private, write_public

from .ray_rig import ENVIRONMENT

ANSWER_S, REFUSED_S = 120.0, 30.0
HEAD = """
import sys
from ray.cluster_utils import Cluster

head = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 80 << 20, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=head)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""
ASK = """
import sys

import ray

ray.init(address=sys.argv[1], log_to_driver=False)
print("answer", ray.get(ray.remote(lambda: 7).remote()), flush=True)
"""


def enclave(folder: Path, authority: Authority, begun_days: float = 0.0) -> Path:
    """As `rfm security init --address` of this machine makes one; good for 30 days."""
    addresses = ["operator", "localhost", "127.0.0.1", own_address()]
    identity = authority.issue("operator", addresses, utc_now() - timedelta(days=begun_days), 30.0, "operator")
    write_private(folder / KEY, identity.key_pem)
    write_public(folder / CERTIFICATE, identity.certificate_pem)
    write_public(folder / IDENTITY_CA, authority.identity.certificate_pem)
    return folder


def own_address() -> str:
    """That Ray uses: of the interface that leads out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect(("8.8.8.8", 80))  # sends nothing
        except OSError:
            return "127.0.0.1"
        return str(way.getsockname()[0])


def with_tls(own: Path) -> Mapping[str, str]:
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(own / CERTIFICATE),
        "RAY_TLS_SERVER_KEY": str(own / KEY),
        "RAY_TLS_CA_CERT": str(own / IDENTITY_CA),
    }


def said(address: str, environment: Mapping[str, str], seconds: float) -> str:
    command = [sys.executable, "-W", "ignore", "-c", ASK, address]
    try:
        return subprocess.run(command, env=dict(environment), capture_output=True, text=True, timeout=seconds, check=False).stdout
    except subprocess.TimeoutExpired:  # whoever does not come in tries on
        return ""


def test_with_tls_a_cluster_answers_who_has_a_certificate_of_its_authority(tmp_path: Path) -> None:
    plant, outside = (Authority.new(name, utc_now()) for name in ("plant", "outside"))
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | ENVIRONMENT
    own = plain | with_tls(enclave(tmp_path / "own", plant))
    head = subprocess.Popen([sys.executable, "-W", "ignore", "-c", HEAD], env=own, stdin=-1, stdout=-1, text=True)
    assert head.stdout
    try:
        address = head.stdout.readline().strip()
        assert "answer 7" in said(address, own, ANSWER_S)
        strangers = {
            "no certificate": plain,
            "another authority's": plain | with_tls(enclave(tmp_path / "foreign", outside)),
            "one that has ended": plain | with_tls(enclave(tmp_path / "ended", plant, begun_days=40.0)),
        }
        for who, theirs in strangers.items():
            if "answer" in said(address, theirs, REFUSED_S):
                pytest.fail(f"{who} comes in")
        assert "answer 7" in said(address, own, ANSWER_S), "and the others are served as before"
    finally:
        head.communicate("", timeout=60)
