"""Actions that are counted from the observed state: held to the transforms of openpi, LeRobot and Isaac-GR00T themselves
(`parity/relative.py` records them), and continued by robots that have moved since."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ros2_rfm_serving.engines.architectures.engine import load_architecture
from ros2_rfm_serving.engines.architectures.importers.base import ImportOptions
from ros2_rfm_serving.engines.architectures.importers.importing import import_checkpoint
from ros2_rfm_serving.engines.architectures.policy import ArchitecturePolicy
from ros2_rfm_serving.engines.flow.sampling import robot_space
from ros2_rfm_serving.engines.flow.stepping import SteppingEngine
from ros2_rfm_serving.errors import ModelError
from ros2_rfm_serving.types import Array, Conditioning, InferenceRequest, PipelineConfig, RequestId
from test.engines.parity import common, relative

SAID = json.loads(relative.FILE.read_text())
GIVEN = {name: np.array(values, np.float32) for name, values in SAID["given"].items()}
CLOSE = 2e-6
"""Ours is float32, where theirs is partly float64"""
REFERENCES = {
    "pi0_openpi": "pi0_openpi",
    "pi05_openpi": "pi05_openpi",
    "pi0": "pi0",
    "pi05": "",
    "groot_n1_6": "groot",
    "groot_n1_7": "groot",
}
"""Recordings at toy size whose checkpoints are made relative here -> whose answers they are held to"""


def edited(file: Path, change: Callable[[Any], Any]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def switched(name: str, on: bool, **more: Any) -> Callable[[Any], None]:
    """A step of LeRobot's pipeline."""

    def change(pipeline: Any) -> None:
        (step,) = (step for step in pipeline["steps"] if step.get("registry_name") == name)
        step.setdefault("config", {}).update(enabled=on, **more)

    return change


def made_relative(name: str, source: Path) -> None:
    if name in ("pi0", "pi05"):
        told = {"exclude_joints": ["Grip"], "action_names": list(relative.NAMES)}
        edited(source / "policy_preprocessor.json", switched("relative_actions_processor", True, **told))
        edited(source / "policy_postprocessor.json", switched("absolute_actions_processor", True))
        edited(source / "config.json", lambda config: config.update(use_relative_actions=True))
    elif name.endswith("openpi"):
        stats = relative.statistics(len(relative.NAMES))
        edited(source / "assets/toy/norm_stats.json", lambda told: told["norm_stats"].update(actions=stats))
    else:
        edited(source / "processor_config.json", groot)
        statistics, tag = relative.groot_statistics()[relative.TAG], relative_tag(source)
        edited(source / "statistics.json", lambda told: told.update({tag: statistics}))


def groot(processor: Any) -> None:
    kwargs = processor["processor_kwargs"]
    (own,) = kwargs["modality_configs"].values()
    own.update(relative.groot_modalities())
    kwargs["use_relative_action"] = True


def relative_tag(source: Path) -> str:
    (tag,) = json.loads((source / "statistics.json").read_text())
    return str(tag)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {name: tmp_path_factory.mktemp(name) for name in REFERENCES}
    for name, folder in made.items():
        recording = common.read(name)
        if name.endswith("openpi"):
            names = [name for name, counted in zip(relative.NAMES, relative.RELATIVE, strict=True) if counted]
            recording = replace(recording, wishes={**recording.wishes, "relative": tuple(names)})
        source = common.checkpoint(recording, folder / "source")
        made_relative(name, source)
        common.imported(recording, source, folder / "bundle")
    return {name: folder / "bundle" for name, folder in made.items()}


def engine_of(bundle: Path) -> SteppingEngine:
    return load_architecture("toy", bundle)


def policy_of(engine: SteppingEngine) -> ArchitecturePolicy:
    assert isinstance(engine.model, ArchitecturePolicy)
    return engine.model


def requests_of(engine: SteppingEngine, name: str) -> list[InferenceRequest]:
    """Two robots, each where it is."""
    first, second = common.requests_of(common.read(name), engine.contract)
    return [
        replace(request, state=state, id=RequestId(robot=f"r{i}", component="system1", session_epoch=1, episode=1, sequence=i))
        for i, (request, state) in enumerate(zip((first, second), GIVEN["state"], strict=True))
    ]


@pytest.mark.parametrize("name", [name for name, reference in REFERENCES.items() if reference])
def test_chunks_come_to_robot_space_and_prefixes_back_as_their_authors_transforms_do_it(
    name: str, bundles: dict[str, Path]
) -> None:
    engine = engine_of(bundles[name])
    policy, said = policy_of(engine), SAID[REFERENCES[name]]
    robot = robot_space(policy, GIVEN["chunk"][:, : engine.contract.chunk_length], list(GIVEN["state"]))
    assert np.abs(robot - np.array(said["robot"])).max() < CLOSE
    moved = [
        replace(request, prefix_robot=prefix, prefix_model=np.zeros_like(prefix))
        for request, prefix in zip(requests_of(engine, name), GIVEN["prefix"], strict=True)
    ]
    ours = [request.prefix_model for request in policy.anchored(moved)]
    assert np.abs(np.array(ours) - np.array(said["model"])).max() < 2 * CLOSE
    assert not engine.contract.action_mean and policy.is_relative


@pytest.mark.parametrize("name", ["pi05", "groot_n1_7"])
def test_what_is_executed_meanwhile_stays_where_it_is_when_the_robot_has_moved(name: str, bundles: dict[str, Path]) -> None:
    """Rows of the delay come back in robot space as they were given, at once and by turns, whatever their old model space says."""
    engine = engine_of(bundles[name])
    (asked, _), delay = requests_of(engine, name), 3
    (free,) = engine.infer([asked])
    (half,) = robot_space(policy_of(engine), free.chunk_model[None] / 2, [asked.state])  # type: ignore[union-attr]
    way = half[:5]  # well within what it was trained on: beyond, GR00T's actions are cut
    there = {"conditioning": Conditioning.PREFIX, "inference_delay_steps": delay, "prefix_model": free.chunk_model[:5]}  # type: ignore[union-attr]
    moved = replace(asked, state=asked.state + np.float32(0.2), prefix_robot=way, **there)
    (answer,) = engine.infer([moved])
    assert np.abs(answer.chunk_robot[:delay] - way[:delay]).max() < 1e-5  # type: ignore[union-attr]
    assert np.abs(answer.chunk_model[:delay, :3] - free.chunk_model[:delay, :3]).max() > 0.05  # type: ignore[union-attr]
    assert np.abs(by_turns(engine, [moved])[0] - answer.chunk_robot).max() == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["pi0_openpi", "groot_n1_6", "groot_n1_7"])
def test_robots_that_stand_elsewhere_share_a_batch(name: str, bundles: dict[str, Path]) -> None:
    """One is guided from where it was, the other is free: each gets what it would get alone, and neither is moved by the other."""
    engine = engine_of(bundles[name])
    one, other = requests_of(engine, name)
    way = {"conditioning": Conditioning.GUIDED, "inference_delay_steps": 2, "prefix_model": GIVEN["prefix"][0]}
    guided = replace(one, prefix_robot=GIVEN["prefix"][0], **way)
    alone = [engine.infer([request])[0].chunk_robot for request in (guided, other)]  # type: ignore[union-attr]
    together = [reply.chunk_robot for reply in engine.infer([guided, other])]  # type: ignore[union-attr]
    turns = by_turns(engine, [guided, other])
    for mine, batched, stepped in zip(alone, together, turns, strict=True):
        assert np.abs(mine - batched).max() < 1e-4 and np.abs(mine - stepped).max() < 1e-4
    lost = engine.infer([replace(guided, prefix_robot=np.zeros((0, 4), np.float32))])[0].chunk_robot  # type: ignore[union-attr]
    assert np.abs(lost - engine.infer([one])[0].chunk_robot).max() < 1e-5, "where its prefix is now, nobody knows"  # type: ignore[union-attr]
    assert np.abs(alone[0] - lost).max() > 1e-3


def by_turns(engine: SteppingEngine, requests: list[InferenceRequest]) -> list[Array]:
    assert not engine.enter(dict(enumerate(requests)))
    answers: dict[int, Any] = {}
    while len(answers) < len(requests):
        answers |= engine.iterate(list(engine.ready()))
    assert not engine._states, "nothing is kept of rows that have left"
    return [answers[row].chunk_robot for row in range(len(requests))]


@pytest.mark.parametrize("name", ["pi05", "groot_n1_7"])
def test_they_pass_their_gate_and_pipelined_sessions_are_refused(name: str, bundles: dict[str, Path]) -> None:
    engine = engine_of(bundles[name])
    assert all(check.passes for check in engine.check_parity()), engine.check_parity()
    assert not engine.contract.pipelines
    with pytest.raises(ModelError, match="counts actions from the observed state"):
        engine.require_pipelining(PipelineConfig(pp_perception=1, pp_generation=2))


def wished(told: dict[str, Any], source: Path) -> ImportOptions:
    """What the recording of a checkpoint was imported with, of its copy."""
    told = told | ({"tokenizer": source / told["tokenizer"]} if "tokenizer" in told else {})
    return ImportOptions(**{**told, **{key: tuple(told.get(key, ())) for key in ("action_names", "state_keys", "action_keys")}})


def test_what_is_said_of_relative_actions_has_to_fit(tmp_path: Path) -> None:
    def refusal(name: str, change: Callable[[Path], Any], **wishes: Any) -> str:
        folder = tmp_path / f"{name}_{len(list(tmp_path.iterdir()))}"
        recording = common.read(name)
        source = common.checkpoint(recording, folder / "source")
        change(source)
        with pytest.raises(ModelError) as raised:
            import_checkpoint(source, folder / "bundle", wished({**recording.wishes, **wishes}, source))
        assert not (folder / "bundle").exists()
        return str(raised.value)

    def lerobot(source: Path) -> None:
        made_relative("pi0", source)

    def turned(source: Path) -> None:
        made_relative("groot_n1_6", source)
        edited(source / "processor_config.json", _poses)

    def alone(source: Path) -> None:
        lerobot(source)
        edited(source / "policy_postprocessor.json", switched("absolute_actions_processor", False))

    def undeclared(source: Path) -> None:
        lerobot(source)
        edited(source / "config.json", lambda config: config.update(use_relative_actions=False))

    def behind(source: Path) -> None:
        lerobot(source)
        edited(source / "policy_preprocessor.json", lambda pipeline: pipeline["steps"].reverse())

    def without(source: Path) -> None:
        made_relative("groot_n1_6", source)
        edited(source / "statistics.json", lambda told: [own.pop("relative_action") for own in told.values()])

    assert "one of them is enabled alone" in refusal("pi0", alone)
    assert "use_relative_actions is False" in refusal("pi0", undeclared)
    assert "relative actions need relative_actions_processor, then normalizer_processor" in refusal("pi0", behind)
    assert "poses relative to a pose are not supported" in refusal("groot_n1_6", turned)
    assert "relative_action is missing" in refusal("groot_n1_6", without)
    assert "'w' is none of the first 6 actions" in refusal("pi0_openpi", lambda source: None, relative=("x", "w"))
    assert "say themselves which actions are relative" in refusal("pi0", lambda source: None, relative=("x",))


@pytest.mark.parametrize(
    "change, named",
    [
        (lambda kwargs, own: kwargs.update(use_mean_std=True), "use_mean_std"),
        (lambda kwargs, own: own["action"].update(mean_std_embedding_keys=["x"]), "action: mean_std_embedding_keys"),
        (lambda kwargs, own: own["state"].update(mean_std_embedding_keys=["x"]), "state: mean_std_embedding_keys"),
        (
            lambda kwargs, own: [
                own["state"].update(sin_cos_embedding_keys=["x"]),
                kwargs.update(apply_sincos_state_encoding=True),
            ],
            "state: sin_cos_embedding_keys",
        ),
    ],
)
def test_a_groot_that_is_normalised_otherwise_is_refused_by_what_says_so(
    change: Callable[[Any, Any], Any], named: str, tmp_path: Path
) -> None:
    """Imported as it is it would act on numbers of another scale."""
    recording = common.read("groot_n1_7")
    source = common.checkpoint(recording, tmp_path / "source")

    def otherwise(processor: Any) -> None:
        kwargs = processor["processor_kwargs"]
        change(kwargs, next(iter(kwargs["modality_configs"].values())))

    edited(source / "processor_config.json", otherwise)
    with pytest.raises(ModelError, match=rf"processor_config\.json: .*{named}: not supported"):
        import_checkpoint(source, tmp_path / "bundle", wished(recording.wishes, source))
    assert not (tmp_path / "bundle").exists()


def _poses(processor: Any) -> None:
    (own,) = processor["processor_kwargs"]["modality_configs"].values()
    own["action"]["action_configs"][0].update(type="EEF", format="XYZ_ROTVEC")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("relative", [0, 1], "processing.relative has 2 columns for 4 actions"),
        ("relative", [0, 1, 2, 99], "processing.relative: 99"),
        ("relative", [0, 1, 2, -1], "processing.relative.3"),
        ("action", {"offset": [0.0] * 4, "scale": [1.0] * 4, "lines": 2}, "4 numbers for 2 lines of 4 columns"),
    ],
)
def test_a_bundle_that_was_edited_is_refused_by_key(
    key: str, value: Any, message: str, bundles: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "bundle"
    folder.mkdir()
    for file in bundles["pi0_openpi"].iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "config.json").unlink()
    (folder / "config.json").write_text((bundles["pi0_openpi"] / "config.json").read_text())
    edited(folder / "config.json", lambda config: config["processing"].update({key: value}))
    with pytest.raises(ModelError) as raised:
        engine_of(folder)
    assert message in str(raised.value)
