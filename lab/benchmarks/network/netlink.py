"""`scripts/netlink`: a bad network on one machine for robots and servers. `switch.py` implements it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer

from lab.benchmarks.network.switch import Switch, check_machine, control_address, namespace, shared_memory
from lab.benchmarks.processes import module_command
from ros2_rfm_serving.errors import ConfigurationError, RfmError

ANSWER_S, START_S = 2.0, 15.0

app = typer.Typer(
    help="Hosts in network namespaces of this machine, joined by a switch that delays, loses and cuts. Linux, as root.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Net = Annotated[str, typer.Option(help="Name of the network; its namespaces are <net>-<host>")]
Of = Annotated[str | None, typer.Option("--of", metavar="HOST", help="Of this host alone; default: of all")]


class EmulatedNetwork:
    """Network that is up. Raises: `ConfigurationError` when it is not, or refuses a setting."""

    def __init__(self, net: str = "rfm") -> None:
        self.net = net

    def set(
        self,
        faults: str | None = None,
        *,
        rate_mbit_s: float | None = None,
        multicast: bool | None = None,
        of: str | None = None,
    ) -> dict[str, Any]:
        """Set faults, as `FaultPlan.parse` reads them, for every frame that a host sends, and return the figures of the hosts."""
        return self._ask(of=of, faults=faults, rate_mbit_s=rate_mbit_s, multicast=multicast)

    def cut(self, of: str | None = None) -> dict[str, Any]:
        return self._ask(of=of, joined=False)

    def join(self, of: str | None = None) -> dict[str, Any]:
        return self._ask(of=of, joined=True)

    def command(self, host: str, *command: str) -> list[str]:
        """Return the command line that runs `command` on a host, with the shared memory of that host."""
        mount = f'mount --bind {shared_memory(self.net, host)} /dev/shm && exec "$@"'
        return ["ip", "netns", "exec", namespace(self.net, host), "sh", "-c", mount, "sh", *command]

    def _ask(self, **wish: Any) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.bind("")
            client.settimeout(ANSWER_S)
            try:
                client.sendto(json.dumps(wish).encode(), control_address(self.net))
                answer: dict[str, Any] = json.loads(client.recv(65536))
            except OSError:
                raise ConfigurationError(f"no network {self.net!r} is up", key="netlink", fix="`netlink up` it first") from None
        if "error" in answer:
            raise ConfigurationError(answer["error"], key="netlink")
        hosts: dict[str, Any] = answer["hosts"]
        return hosts


@contextmanager
def emulated_network(hosts: dict[str, str], net: str) -> Iterator[EmulatedNetwork]:
    """Yield a network for the time of the block. hosts: name -> address with prefix length. Raises: `ConfigurationError`."""
    check_machine()
    command = module_command("lab.benchmarks.network.netlink", "up", "--net", net)
    command += [f"{host}={address}" for host, address in hosts.items()]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    network = EmulatedNetwork(net)
    try:
        _wait_until_up(network, process)
        yield network
    finally:
        process.terminate()
        process.communicate(timeout=START_S)


def _wait_until_up(network: EmulatedNetwork, process: subprocess.Popen[str]) -> None:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s and process.poll() is None:
        with suppress(ConfigurationError):  # it is starting
            network.set()
            return
        time.sleep(0.1)
    process.terminate()
    raise ConfigurationError(process.communicate()[1].strip() or "the switch does not start", key="netlink")


@app.command()
def up(
    hosts: Annotated[list[str], typer.Argument(metavar="HOST=ADDRESS/PREFIX...", help="Such as robot=10.77.0.1/24")],
    net: Net = "rfm",
) -> None:
    """Makes the namespaces and joins them; runs until it is ended, and removes them.

    Example:  sudo scripts/netlink up robot=10.77.0.1/24 server=10.77.0.2/24
    """
    for host in hosts:
        if not re.fullmatch(r"[a-z]\w{0,9}=[\d.]+/\d+", host, re.ASCII):
            raise ConfigurationError(f"{host!r} is no host", key="netlink", fix="write <name>=<address>/<prefix length>")
    switch = Switch(net, dict(host.split("=") for host in hosts))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    typer.echo("up: " + " ".join(namespace(net, host.split("=")[0]) for host in hosts))
    try:
        with suppress(KeyboardInterrupt):
            switch.run()
    finally:
        switch.close()


@app.command("set")
def set_(
    faults: Annotated[str, typer.Argument(help='Such as "delay_ms=25 jitter_ms=10 drop=0.05"; "": none')],
    rate_mbit_s: Annotated[float | None, typer.Option(min=0, help="Of what a host sends; 0: no limit")] = None,
    multicast: Annotated[
        bool | None, typer.Option("--multicast/--no-multicast", help="Whether multicast passes", show_default=False)
    ] = None,
    of: Of = None,
    net: Net = "rfm",
) -> None:
    """What happens to every frame that a host sends.

    Example:  sudo scripts/netlink set "delay_ms=25 jitter_ms=10 drop=0.05"
    """
    _show(EmulatedNetwork(net).set(faults, rate_mbit_s=rate_mbit_s, multicast=multicast, of=of))


@app.command()
def cut(of: Of = None, net: Net = "rfm") -> None:
    """Nothing passes until `join`.

    Example:  sudo scripts/netlink cut --of robot
    """
    _show(EmulatedNetwork(net).cut(of))


@app.command()
def join(of: Of = None, net: Net = "rfm") -> None:
    """Ends a cut.

    Example:  sudo scripts/netlink join
    """
    _show(EmulatedNetwork(net).join(of))


@app.command()
def show(net: Net = "rfm") -> None:
    """Settings, frames sent and dropped, of every host.

    Example:  sudo scripts/netlink show
    """
    _show(EmulatedNetwork(net).set())


@app.command("in", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def in_(
    host: Annotated[str, typer.Argument(help="Name, as given to `up`")],
    command: Annotated[list[str], typer.Argument(help="And its arguments")],
    net: Net = "rfm",
) -> None:
    """Runs a command on a host. Without ROS_AUTOMATIC_DISCOVERY_RANGE it discovers the whole emulated network.

    Example:  sudo scripts/netlink in robot rfm robot factory.yaml --task push --name push_2
    """
    check_machine()
    arguments = EmulatedNetwork(net).command(host, *command)
    os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "SUBNET")
    os.execvp(arguments[0], arguments)


def _show(hosts: dict[str, Any]) -> None:
    for host, figures in hosts.items():
        typer.echo(f"{host}: " + ", ".join(f"{name} {value}" for name, value in figures.items()))


def main() -> None:
    try:
        app()
    except RfmError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
