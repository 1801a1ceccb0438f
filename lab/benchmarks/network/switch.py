"""Bad network on one machine: namespaces joined by a switch in user space, for kernels without netem. Linux, as root.

Every namespace has one TAP device, `eth0`; its frames pass through this process, which delays and damages the frames of a port as
the port's `FaultPlan` says. A TAP has neither checksum nor segmentation offload, so that frames arrive as on a wire.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import random
import select
import shutil
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.faults import Direction, FaultPlan, FaultyWire

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
MAX_FRAME_BYTES = 65536
FRAMES_AT_ONCE = 64
BUFFER_S = 0.5
"""Traffic that a port with a limited rate buffers, in s; more is dropped."""
HEADER_BYTES = 14


def control_address(net: str) -> str:
    """Return the address of the switch's datagram socket, in Linux's abstract namespace."""
    return f"\0rfm-netlink-{net}"


def namespace(net: str, host: str) -> str:
    return f"{net}-{host}"


def shared_memory(net: str, host: str) -> Path:
    """Return the /dev/shm of a namespace's processes: two hosts share no memory, two processes of one do."""
    return Path("/dev/shm") / namespace(net, host)


def check_machine() -> None:
    """Check this machine. Raises: `ConfigurationError` when it cannot emulate networks."""
    needs = "network namespaces and TAP devices"
    if sys.platform != "linux":
        raise ConfigurationError(f"{needs} are Linux's, this is {sys.platform}", key="netlink")
    if os.geteuid() != 0:
        raise ConfigurationError(f"{needs} need root", key="netlink", fix="run it with sudo")
    if not Path("/dev/net/tun").exists():
        raise ConfigurationError("there is no /dev/net/tun", key="netlink", fix="modprobe tun, or give it to the container")
    if not shutil.which("ip"):
        raise ConfigurationError("there is no command `ip`", key="netlink", fix="install iproute2")


def ip(*arguments: str) -> None:
    """Run `ip`. Raises: `ConfigurationError` with its error message."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigurationError(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}", key="netlink")


@dataclass(eq=False)
class Port:
    """Connection of one namespace."""

    host: str
    file: int
    """Descriptor of its TAP."""
    faults: str = ""
    rate_mbit_s: float = 0.0
    """0: no limit."""
    joined: bool = True
    multicast: bool = True
    """False: frames of the host to a multicast group are lost, as in many plants; broadcasts pass."""
    frames: int = 0
    """Frames that the host sent."""
    dropped: int = 0
    free_s: float = 0.0
    """Time when the last frame has left, at a limited rate."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.host)
        self.started_s = time.monotonic()
        self.wire = FaultyWire(FaultPlan(), self.rng)

    def set(self, faults: str | None, rate_mbit_s: float | None, joined: bool | None, multicast: bool | None) -> None:
        """Change the given settings. Raises: `ConfigurationError`."""
        if faults is not None:
            self.wire, self.faults = FaultyWire(FaultPlan.parse(faults), self.rng), faults
            self.started_s = time.monotonic()
        if rate_mbit_s is not None:
            self.rate_mbit_s = rate_mbit_s
        if joined is not None:
            self.joined = joined
        if multicast is not None:
            self.multicast = multicast

    def departures(self, num_bytes: int, now_s: float) -> list[tuple[float, bool]]:
        """Return (time, damaged) of each copy of a frame that the host sends now; empty: the frame is lost."""
        start_s = max(now_s, self.free_s)
        if start_s - now_s > BUFFER_S:
            return []
        if self.rate_mbit_s:
            start_s = self.free_s = start_s + num_bytes * 8e-6 / self.rate_mbit_s
        copies = self.wire.deliveries(Direction.UP, start_s - self.started_s)
        return [(start_s + copy.delay_s, copy.corrupt) for copy in copies]

    def damaged(self, frame: bytes) -> bytes:
        """Return the frame with one bit flipped behind the header, which the receiver's checksum detects."""
        content = bytearray(frame)
        if len(content) > HEADER_BYTES:
            content[self.rng.randrange(HEADER_BYTES, len(content))] ^= 1 << self.rng.randrange(8)
        return bytes(content)

    def figures(self) -> dict[str, Any]:
        names = ("faults", "rate_mbit_s", "joined", "multicast", "frames", "dropped")
        return {name: getattr(self, name) for name in names} | {"happened": dict(self.wire.happened)}


class Switch:
    """Switch that learns the port of each address. `close` removes the namespaces."""

    def __init__(self, net: str, hosts: dict[str, str]) -> None:
        """hosts: name -> address with prefix length, such as 10.77.0.1/24."""
        check_machine()
        self._net = net
        self._ports: list[Port] = []
        self._at: dict[bytes, Port] = {}
        self._queue: list[tuple[float, int, Port, bytes]] = []
        self._num_queued = 0
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._control.bind(control_address(net))
        except OSError:
            raise ConfigurationError(
                f"a network named {net!r} is up already", key="netlink", fix="give --net another name"
            ) from None
        try:
            for host, address in hosts.items():
                self._ports.append(Port(host, _open_host(net, host, address)))
        except ConfigurationError:
            self.close()
            raise

    def run(self) -> None:
        """Run until an exception such as KeyboardInterrupt."""
        by_file = {port.file: port for port in self._ports}
        poll = select.poll()
        for file in (*by_file, self._control.fileno()):
            poll.register(file, select.POLLIN)
        while True:
            wait_ms = max(0.0, 1e3 * (self._queue[0][0] - time.monotonic())) if self._queue else None
            for file, _ in poll.poll(wait_ms):
                if file in by_file:
                    self._take(by_file[file])
                else:
                    self._obey()
            self._deliver(time.monotonic())

    def close(self) -> None:
        for port in self._ports:
            os.close(port.file)
            subprocess.run(["ip", "netns", "del", namespace(self._net, port.host)], capture_output=True, check=False)
            shutil.rmtree(shared_memory(self._net, port.host), ignore_errors=True)
        self._control.close()

    def _take(self, sender: Port) -> None:
        for _ in range(FRAMES_AT_ONCE):
            try:
                frame = os.read(sender.file, MAX_FRAME_BYTES)
            except BlockingIOError:
                return
            sender.frames += 1
            self._at[frame[6:12]] = sender
            if not sender.multicast and is_multicast(frame):
                sender.dropped += 1
                continue
            receiver = self._at.get(frame[:6])
            for port in [receiver] if receiver else [port for port in self._ports if port is not sender]:
                copies = sender.departures(len(frame), time.monotonic()) if sender.joined and port.joined else []
                sender.dropped += not copies
                for due_s, damaged in copies:
                    self._num_queued += 1
                    heapq.heappush(self._queue, (due_s, self._num_queued, port, sender.damaged(frame) if damaged else frame))

    def _deliver(self, now_s: float) -> None:
        while self._queue and self._queue[0][0] <= now_s:
            _, _, receiver, frame = heapq.heappop(self._queue)
            try:
                if receiver.joined:
                    os.write(receiver.file, frame)
            except OSError:  # the buffer is full or the device down: the frame is lost, as on a wire
                receiver.dropped += 1

    def _obey(self) -> None:
        text, sender = self._control.recvfrom(MAX_FRAME_BYTES)
        try:
            wish = json.loads(text)
            ports = [port for port in self._ports if wish.get("of") in (None, port.host)]
            if not ports:
                raise ConfigurationError(f"no host is named {wish['of']!r}", fix=f"known here: {[p.host for p in self._ports]}")
            for port in ports:
                port.set(wish.get("faults"), wish.get("rate_mbit_s"), wish.get("joined"), wish.get("multicast"))
            answer: dict[str, Any] = {"hosts": {port.host: port.figures() for port in ports}}
        except (ConfigurationError, ValueError) as error:
            answer = {"error": str(error)}
        if sender:
            self._control.sendto(json.dumps(answer).encode(), sender)


def is_multicast(frame: bytes) -> bool:
    """Return whether a frame is for a group, but no broadcast."""
    return bool(frame[0] & 1) and frame[:6] != b"\xff" * 6


def _open_host(net: str, host: str, address: str) -> int:
    """Create a namespace with its eth0, up, and return the descriptor of the device's other end."""
    name, device = namespace(net, host), f"{os.getpid() % 100000}{host}"[:15]
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TAP | IFF_NO_PI))
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)  # left by a killed switch
        ip("netns", "add", name)
        ip("link", "set", device, "netns", name, "name", "eth0")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "addr", "add", address, "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "txqueuelen", "20000", "up")
        ip("-n", name, "route", "add", "224.0.0.0/4", "dev", "eth0")
        shared_memory(net, host).mkdir(exist_ok=True)
    except OSError as error:
        os.close(file)
        raise ConfigurationError(f"no TAP device can be made: {error}", key="netlink", fix="run it as root") from error
    except ConfigurationError:
        os.close(file)
        raise
    return file
