from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ros2_rfm_serving.cli import check
from ros2_rfm_serving.errors import ConfigurationError
from ros2_rfm_serving.factory import load_factory, parse_factory
from ros2_rfm_serving.factory.cores import cores_of, cores_text
from ros2_rfm_serving.factory.nodes import node_list
from ros2_rfm_serving.factory.reading_cores import shared_cores
from ros2_rfm_serving.factory.task import PipeliningEntry
from ros2_rfm_serving.types import Fallback


def test_rosa_figure_3_loads_word_for_word(repository: Path) -> None:
    factory = load_factory(repository / "config" / "factory_rosa_fig3.yaml")
    assert factory.gpu_types == {f"server_{i + 1}": "NVIDIA H200" for i in range(8)}
    assert len(factory.robots) == 32
    inspect = factory.tasks["inspect_product"]
    assert inspect.pipeline.system2_to_system1_call_ratio == 1
    assert inspect.components["safety"].freq_hz == 2
    assert inspect.components["safety"].fallback is Fallback.STOP_AND_REPLAN
    assert inspect.components["system2"].prompt == "check defects; choose next view"
    assert factory.tasks["pick_and_place_simple"].components["system1"].slo_ms == 200


def test_every_shipped_factory_loads_and_names_its_nodes_uniquely(repository: Path) -> None:
    for file in (repository / "config").glob("factory_*.yaml"):
        nodes = node_list(load_factory(file), repository / "config", work={})
        assert len({node.name for node in nodes}) == len(nodes)


SMALL = """\
server_cluster:
  num_servers: 1
  gpu_type: CPU
robot_fleet:
  - task: carry
    num_robots: 2
carry:
  pipeline:
    action_period_ms: 100
  components:
    system1:
      model: m
"""


PIPELINED = ("  pipeline:\n", "  execution: {mode: async, pipelining: {}}\n  pipeline:\n")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("num_servers: 1", "num_server: 1", ["f.yaml:2", "server_cluster.num_server", "did you mean `num_servers`?"]),
        ("num_servers: 1", "num_servers: 0", ["f.yaml:2", "server_cluster.num_servers", "0"]),
        ("num_servers: 1", "num_servers: many", ["server_cluster.num_servers", "'many'"]),
        ("action_period_ms: 100", "action_period_ms: .nan", ["carry.pipeline.action_period_ms"]),
        ("action_period_ms: 100", "action_period_ms: -1", ["f.yaml:9", "carry.pipeline.action_period_ms", "-1"]),
        ("action_period_ms: 100", "action_period_ms: 1.0e-320", ["f.yaml:9", "carry.pipeline.action_period_ms", "0.001"]),
        ("action_period_ms: 100", "action_period_ms: 1.0e+300", ["f.yaml:9", "carry.pipeline.action_period_ms", "1000000000"]),
        ("      model: m", "      model: m\n      slo_ms: 1.0e+300", ["carry.components.system1.slo_ms", "1000000000"]),
        ("carry:\n", "carry:\n  value: 1.0e+300\n", ["carry.value", "1000000"]),
        ("- task: carry", "- task: cary", ["f.yaml:5", "robot_fleet[0].task", "did you mean `carry`?"]),
        ("    system1:", "    sytem1:", ["f.yaml:11", "carry.components.sytem1", "did you mean `system1`?"]),
        ("      model: m", "      modle: m", ["carry.components.system1"]),
        ("      model: m", "      model: m\n      freq_hz: 3", ["system1.freq_hz", "does not apply"]),
        ("      model: m", "      model: m\n    monitor:\n      model: m", ["monitor.freq_hz", "is missing"]),
        ("      model: m", "      model: m\n    system2:\n      model: m", ["system2_to_system1_call_ratio"]),
        ("      model: m", "      model: m\n      model: n", ["f.yaml:13", "written twice"]),
        ("robot_fleet:", "robots:", ["robot_fleet", "is missing"]),
        ("carry:\n", "carry-it:\n", ["carry-it", "cannot name a task"]),
        ("  pipeline:", "  pipelin:", ["carry.pipelin"]),
        ("server_cluster:", "server_cluster: [", ["not valid YAML"]),
        (*PIPELINED, ["f.yaml:8", "carry.execution.pipelining", "no server would take such sessions", "batching: continuous"]),
        (PIPELINED[0], PIPELINED[1].replace("async", "sync"), ["carry.execution", "pipelining needs `mode: async`"]),
        (PIPELINED[0], PIPELINED[1].replace("{}", "{pp_perception: 0}"), ["carry.execution.pipelining.pp_perception", "0"]),
        (PIPELINED[0], PIPELINED[1].replace("{}", "{fetch_offset: 1}"), ["carry.execution.pipelining.fetch_offset", "1"]),
    ],
)
def test_an_error_names_line_key_and_fix(old: str, new: str, expected: list[str]) -> None:
    assert old in SMALL
    with pytest.raises(ConfigurationError) as error:
        parse_factory(SMALL.replace(old, new, 1), "f.yaml")
    for words in expected:
        assert words in str(error.value)


def test_a_task_may_be_pipelined_where_rows_join_running_batches() -> None:
    continuous = SMALL.replace("num_servers: 1", "num_servers: 1\n  batching: continuous")
    assert parse_factory(continuous.replace(*PIPELINED)).tasks["carry"].execution.pipelining == PipeliningEntry()
    assert parse_factory(continuous).tasks["carry"].execution.pipelining is None


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("dispatch: fifo", "dispatch: swift", ["server_cluster[1].dispatch", "`swift`", "`fifo`", "write `dispatch: fifo` here"]),
        ("dispatch: fifo", "dispatch: auto", ["server_cluster[1].dispatch", "`auto`", "`fifo`"]),
        ("dispatch: auto", "threads: 2", ["server_cluster[1].dispatch", "`balanced`", "`auto`"]),
        ("batching: wait", "batching: saturation", ["server_cluster[1].batching", "`saturation`", "with `wait` or none of them"]),
        ("threads: 2", "batching: wait", ["server_cluster[1].batching", "`wait`", "with `wait` or none of them"]),
        ("batching: continuous", "batching: wait", ["server_cluster[1].batching", "`wait`"]),
    ],
)
def test_groups_of_one_gpu_type_queue_alike(first: str, second: str, expected: list[str]) -> None:
    """A plan knows one queue for each type: with two, it would promise for one what it found for the other."""
    cluster = "server_cluster:\n  num_servers: 1\n  gpu_type: CPU\n"
    groups = "server_cluster:\n  - {num_servers: 1, gpu_type: %s, %s}\n  - {num_servers: 2, gpu_type: G, %s}\n"
    assert cluster in SMALL
    with pytest.raises(ConfigurationError) as error:
        parse_factory(SMALL.replace(cluster, groups % ("G", first, second)), "f.yaml")
    for words in ["f.yaml:3", *expected]:
        assert words in str(error.value)
    assert len(parse_factory(SMALL.replace(cluster, groups % ("H", first, second))).server_cluster) == 2, "of another type"
    assert len(parse_factory(SMALL.replace(cluster, groups % ("G", first, first))).server_cluster) == 2


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"no/such\.yaml: cannot be read"):
        load_factory(Path("no/such.yaml"))


def test_robots_are_named_after_their_task() -> None:
    assert [robot.name for robot in parse_factory(SMALL).robots] == ["carry_1", "carry_2"]


@given(st.text(max_size=200))
def test_no_text_crashes_the_parser(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_factory(text)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)


@given(st.recursive(SCALARS, lambda children: st.lists(children, max_size=3)))
def test_no_value_in_a_known_place_crashes_the_parser(value: object) -> None:
    import yaml

    text = yaml.safe_dump({"server_cluster": value, "robot_fleet": value, "carry": value})
    with pytest.raises(ConfigurationError):
        parse_factory(text)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("on_max_task_retries: stop_and_call_human", "on_max_task_retries: stop_and_resend", "task_retry.on_max_task_retries"),
        ("on_max_violation: stop_and_call_human", "on_max_violation: use_last_plan", "would go on as before"),
        ("fallback: stop_and_replan", "fallback: use_last_plan", "late safety verdict for a pass"),
    ],
)
def test_a_fallback_that_would_change_nothing_is_refused(repository: Path, old: str, new: str, words: str) -> None:
    text = (repository / "config" / "factory_rosa_fig3.yaml").read_text(encoding="utf-8")
    with pytest.raises(ConfigurationError, match=words):
        parse_factory(text.replace(old, new))


@pytest.mark.parametrize(("told", "checks"), [("", False), ("\n  parity: at_start", True), ("\n  parity: on_request", False)])
def test_a_group_of_servers_may_hold_its_models_against_their_references_before_it_serves(
    told: str, checks: bool, repository: Path
) -> None:
    text = (repository / "config" / "factory_quickstart.yaml").read_text()
    factory = parse_factory(text.replace("num_servers: 2", f"num_servers: 2{told}", 1))
    nodes = [node for node in node_list(factory, repository / "config", work={}) if node.executable == "model_server_node"]
    assert nodes and {node.parameters["check_parity"] for node in nodes} == {checks}


def test_another_word_for_when_is_refused(repository: Path) -> None:
    text = (repository / "config" / "factory_quickstart.yaml").read_text()
    with pytest.raises(ConfigurationError, match="parity"):
        parse_factory(text.replace("num_servers: 2", "num_servers: 2\n  parity: always", 1))


def of_servers(repository: Path, told: str) -> list[dict[str, Any]]:
    """Parameters of the quickstart's two servers, with something said of their group."""
    text = (repository / "config" / "factory_quickstart.yaml").read_text()
    factory = parse_factory(text.replace("num_servers: 2", f"num_servers: 2\n  {told}", 1))
    nodes = node_list(factory, repository / "config", work={})
    return [node.parameters for node in nodes if node.executable == "model_server_node"]


def test_each_server_of_a_group_has_its_threads_and_its_cores(repository: Path) -> None:
    parameters = of_servers(repository, 'threads: 3\n  cores: ["0-2", "5,3,4"]')
    assert [each["cores"] for each in parameters] == ["0-2", "3-5"]
    assert [each["threads"] for each in parameters] == [3, 3]
    assert [each["cores"] for each in of_servers(repository, "cores: [1, 0]")] == ["1", "0"]
    assert [(each["threads"], each["cores"]) for each in of_servers(repository, "parity: on_request")] == [(1, ""), (1, "")]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ('cores: ["0-3"]', "cores: has 1 entries, and `num_servers` is 2; name cores for each server of the group"),
        ("cores: 0-3", "cores: is no list of cores by server (found '0-3'); write a list"),
        ("cores: ''", "cores: is no list"),
        ("cores: {a: 1}", "cores: is no list"),
        ('cores: ["0-3", "3-1"]', "'3-1' is no range"),
        ('cores: ["0-3", "first"]', "'first' is neither a core nor a range"),
        ('cores: ["0-3", ""]', "names no core"),
        ('cores: ["0-3", "99999"]', "no range of cores below"),
        ("cores: [0, -1]", "'-1' is neither"),
        ("cores: [0, true]", "cores[1]: is no text (found True); give numbers and ranges of cores"),
        ("cores: [0, [1]]", "cores[1]: is no text (found [1])"),
        ("cores: [0, 1.5]", "cores[1]: is no text (found 1.5)"),
        ("threads: 0", "threads"),
    ],
)
def test_cores_that_cannot_be_are_refused_with_their_place(repository: Path, told: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)) as refused:
        of_servers(repository, told)
    assert told.partition(":")[0] in str(refused.value) and "server_cluster" in str(refused.value)
    text = (repository / "config" / "factory_quickstart.yaml").read_text().splitlines()
    assert refused.value.line == next(i for i, line in enumerate(text, start=1) if "num_servers: 2" in line) + 1
    assert "Value error" not in str(refused.value) or told.startswith("threads")


GROUPS = """
server_cluster:
- {num_servers: 2, gpu_type: A, cores: [0-1, 2]}
- {num_servers: 1, gpu_type: B, cores: ["1-2"]}
"""


def test_servers_that_share_cores_of_a_machine_are_named(repository: Path) -> None:
    text = (repository / "config" / "factory_quickstart.yaml").read_text()
    _, fleet, rest = text.partition("robot_fleet:")
    factory = parse_factory(GROUPS + fleet + rest)
    assert [line.partition(":")[0] for line in shared_cores(factory)] == [
        "server_1 and server_3 both keep to core 1",
        "server_2 and server_3 both keep to core 2",
    ]
    hosts = "hosts: {one: {address: 10.0.0.1, gpus: {A: 2}}, other: {address: 10.0.0.2, gpus: {B: 1}}}\n"
    assert not list(shared_cores(parse_factory(GROUPS + hosts + fleet + rest))), "of another machine they are others"


def test_servers_beyond_the_declared_ones_keep_to_no_cores(repository: Path) -> None:
    text = (repository / "config" / "factory_quickstart.yaml").read_text()
    factory = parse_factory(text.replace("num_servers: 2", "num_servers: 2\n  cores: [0, 1]", 1))
    assert factory.with_num_servers(3).cores == {"server_1": "0", "server_2": "1", "server_3": ""}
    assert factory.with_num_servers(1).cores == {"server_1": "0"}


def test_check_warns_of_cores_that_this_machine_does_not_have(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (repository / "config" / "factory_quickstart.yaml").read_text()
    declared = parse_factory(text.replace("num_servers: 2", "num_servers: 2\n  cores: [0, 1-3]", 1))
    monkeypatch.setattr(check.os, "sched_getaffinity", lambda process: {0, 1})
    assert list(check.cores(declared)) == ["server_2 does not start here: there is no core 2-3 for it, but 0-1"]
    monkeypatch.setattr(check.sys, "platform", "darwin")
    assert not list(check.cores(declared)), "where none can be chosen, none can be counted"


@given(st.frozensets(st.integers(0, 300)))
def test_cores_in_words_are_those_cores(cores: frozenset[int]) -> None:
    assert cores_of(cores_text(cores)) == cores
