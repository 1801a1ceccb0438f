"""systemd: a unit per process, and on each host one target with all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory.environment import ORDER, VISIBLE
from ros2_rfm_serving.operate.deploy.options import ACCOUNT
from ros2_rfm_serving.operate.deploy.processes import Plan, Process
from ros2_rfm_serving.operate.executables import is_installed
from ros2_rfm_serving.operate.supervisor import MAX_BACKOFF_S, MAX_RESTARTS_IN_A_ROW
from ros2_rfm_serving.ros.node.process import EXIT_CONFIGURATION

NOTHING: Mapping[str, str] = MappingProxyType({})
Section = tuple[str, Sequence[tuple[str, str]]]
TARGET = "rfm.target"
SECRETS = "secrets.env"
"""File below `etc` that the user has to provide."""
STATE, LOGS = f"/var/lib/{ACCOUNT}", f"/var/log/{ACCOUNT}"
SANDBOX = (
    ("NoNewPrivileges", "yes"),
    ("CapabilityBoundingSet", ""),
    ("ProtectSystem", "strict"),
    ("ProtectHome", "read-only"),
    ("PrivateTmp", "yes"),
    ("ProtectKernelTunables", "yes"),
    ("ProtectKernelModules", "yes"),
    ("ProtectControlGroups", "yes"),
    ("RestrictSUIDSGID", "yes"),
    ("RestrictNamespaces", "yes"),
    ("LockPersonality", "yes"),
    ("StateDirectory", ACCOUNT),
    ("LogsDirectory", ACCOUNT),
    ("WorkingDirectory", STATE),
)
"""Sandbox: the root is read-only, except state and logs; other processes' files in /tmp are hidden. DDS needs shared memory."""


def manifests(plan: Plan) -> dict[str, str]:
    """Return the files by name. Raises: `ConfigurationError`."""
    if not (plan.options.prefix or is_installed()):
        fix = "--prefix, of the installation on that machine"
        raise ConfigurationError("units start what is installed, and this is a checkout", key="--systemd", fix=fix)
    about = f"# Of {plan.title}, written by `rfm deploy --systemd`: change the descriptor, and write it anew.\n"
    files: dict[str, str] = {}
    for host in plan.hosts:
        folder, here = f"{host}/" if host else "", plan.on(host)
        units = {f"rfm-{process.name}.service": _unit(plan, process) for process in here}
        units |= {TARGET: _target(plan, host), "rfm-metrics.service": _metrics(plan, plan.beside(host))}
        files |= {f"{folder}units/{name}": about + text for name, text in units.items()}
        files |= {f"{folder}etc/{name}": text for name, text in plan.files.items()}
        files |= {f"{folder}etc/parameters/{process.name}.yaml": process.parameters for process in here}
        files[f"{folder}sysusers.d/{ACCOUNT}.conf"] = f'u {ACCOUNT} - "processes of rfm_serving" {STATE}\n'
    return files


def _unit(plan: Plan, process: Process) -> str:
    stop = [("ExecStop", f"-{_line(process.drain)}")] if process.drain else []  # after a failure, too, the process is asked to end
    secrets = [("EnvironmentFile", f"{plan.options.etc}/{SECRETS}")] if process.secrets else []
    service = [("ExecStart", _line(process.command)), *stop, *_environment(process, gpu_environment(process)), *secrets]
    return _service(plan, process.name, [*service, ("TimeoutStopSec", str(process.stop_s))])


def _metrics(plan: Plan, beside: Process) -> str:
    """Return the unit that answers probes and Prometheus on this machine."""
    command = plan.metrics("127.0.0.1", plan.options.metrics, LOGS)
    return _service(
        plan, "metrics", [("ExecStart", _line(command)), *_environment(plan.watching(beside)), ("TimeoutStopSec", "15")]
    )


def _service(plan: Plan, name: str, lines: Iterable[tuple[str, str]]) -> str:
    """Return a unit with the restarts of `rfm up`: a process with an invalid configuration is not started again."""
    unit = [
        ("Description", f"rfm_serving: {name} of {plan.title}".replace("%", "%%")),
        ("PartOf", TARGET),
        ("Wants", "network-online.target"),
        ("After", "network-online.target"),
        ("StartLimitIntervalSec", f"{2 * MAX_BACKOFF_S * MAX_RESTARTS_IN_A_ROW:g}"),
        ("StartLimitBurst", str(MAX_RESTARTS_IN_A_ROW + 1)),
    ]
    restart = [("Restart", "always"), ("RestartSec", "2"), ("RestartPreventExitStatus", str(EXIT_CONFIGURATION))]
    kill = [("KillMode", "mixed"), ("KillSignal", "SIGTERM")]
    user = [("User", ACCOUNT), ("Group", ACCOUNT)]
    sections = [("Unit", unit), ("Service", [("Type", "exec"), *lines, *kill, *restart, *user, *SANDBOX])]
    return _text([*sections, ("Install", [("WantedBy", TARGET)])])


def _target(plan: Plan, host: str) -> str:
    what = f"rfm_serving: {plan.title}" + (f", its part on {host}" if host else "")
    return _text([("Unit", [("Description", what.replace("%", "%%"))]), ("Install", [("WantedBy", "multi-user.target")])])


def _environment(process: Process, more: Mapping[str, str] = NOTHING) -> list[tuple[str, str]]:
    environment = {"HOME": STATE, "ROS_LOG_DIR": LOGS, **process.environment, **more}
    return [("Environment", _word(f"{name}={value}")) for name, value in environment.items()]


def gpu_environment(process: Process) -> dict[str, str]:
    """Return the variables of a server with a GPU of its own, also where the descriptor has no hosts."""
    return {VISIBLE: process.device, ORDER: "PCI_BUS_ID"} if process.device else {}


def _line(command: Sequence[str]) -> str:
    return " ".join(_word(word).replace("$", "$$") for word in command)


def _word(text: str) -> str:
    """Quote a word for systemd: `%` begins a specifier, and words with spaces need quotes."""
    text = text.replace("%", "%%")
    if text and not set(text) & set(" \t\n\"'\\;"):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _text(sections: Iterable[Section]) -> str:
    return "\n".join(f"[{name}]\n" + "".join(f"{key}={value}\n" for key, value in lines) for name, lines in sections)
