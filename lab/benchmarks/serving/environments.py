"""Peers of `rfm bench serving`, each in an environment of its own, installed on first use. Versions are pinned."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ros2_rfm_serving.errors import ConfigurationError

DEFAULT_FOLDER = Path("~/.cache/rfm_serving/peers")
INSTALL_LIMIT_S = 1800.0
DECODER = "simplejpeg==1.9.0"
"""Our decoder for peers that decode: libraries differ by more than servers do."""


@dataclass(frozen=True, kw_only=True)
class PeerEnvironment:
    """Environment of a peer, with the arguments of consecutive pip calls."""

    name: str
    installs: tuple[tuple[str, ...], ...]

    def folder(self, folder: Path) -> Path:
        """Return its folder; other pins, or another Python, have another one."""
        pins = hashlib.sha256(repr((self.installs, sys.version_info[:2])).encode()).hexdigest()[:8]
        return folder.expanduser() / f"{self.name}-{pins}"


OPENPI = PeerEnvironment(
    name="openpi",
    installs=(("openpi-client==0.1.2", "numpy==1.26.4", "websockets==17.4", "msgpack==1.2.4", "typing_extensions"), (DECODER,)),
)
RAY = PeerEnvironment(name="ray", installs=(("ray[serve]==2.60.0", "numpy==2.4.6", DECODER),))
LEROBOT = PeerEnvironment(
    name="lerobot",
    installs=(
        ("torch==2.13.0", "numpy==2.2.6"),
        ("--no-deps", "torchvision==0.28.0", "lerobot==0.4.4"),  # its own limits exclude this PyTorch
        (
            *("draccus==0.10.0", "huggingface-hub==0.35.3", "datasets==4.1.1", "gymnasium==1.4.0", "einops==0.8.2"),
            *("opencv-python-headless==4.12.0.88", "transformers==4.57.6", "grpcio==1.73.1", "protobuf==6.31.1"),
            *("accelerate==1.15.0", "diffusers==0.35.2", "pyserial==3.5", "av==15.1.0", "num2words==0.5.14"),
            *("deepdiff==9.1.0", "imageio==2.38.1", "jsonlines==4.0.0", "packaging", "termcolor", DECODER),
        ),
    ),
)


def python_of(environment: PeerEnvironment, folder: Path, say: Callable[[str], None]) -> Path:
    """Return its interpreter, installed now if it is missing. Raises: `ConfigurationError` naming pip's log."""
    home = environment.folder(folder)
    python, complete = home / "bin" / "python", home / "complete"
    if complete.exists():
        return python
    home.mkdir(parents=True, exist_ok=True)
    log = home / "install.log"
    commands = [
        [sys.executable, "-m", "venv", "--clear", str(home)],
        *([str(python), "-m", "pip", "install", *packages] for packages in environment.installs),
    ]
    transcript = b""
    for number, command in enumerate(commands, start=1):
        say(f"installing {environment.name} into {home} ({number} of {len(commands)})")
        ended = _run(command)
        transcript += ended.stdout
        log.write_bytes(transcript)  # the first command clears the environment with its log
        if ended.returncode:
            last = ended.stdout.decode(errors="replace").strip().rpartition("\n")[2][-200:]
            raise ConfigurationError(f"{environment.name} cannot be installed: {last}", file=str(log), fix="see the log")
    complete.touch()
    return python


def _run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=INSTALL_LIMIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"") + f"\nnot done within {INSTALL_LIMIT_S:g} s\n".encode()
        return subprocess.CompletedProcess(command, 1, output)
