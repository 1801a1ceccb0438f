"""Contracts of models by files alone, the catalogue's entry and the configuration of a bundle; no model is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ros2_rfm_serving.engines.base import Predicts, offered
from ros2_rfm_serving.engines.emulated import MAX_NUM_STEPS, contract_of, spec_of
from ros2_rfm_serving.factory import Catalogue, CatalogueEntry, Factory
from ros2_rfm_serving.robot.client.requests import session_request
from ros2_rfm_serving.server.contract import differences
from ros2_rfm_serving.shipped import shipped
from ros2_rfm_serving.types import SYSTEM1, Conditioning, HorizonRequest, ModelContract, OutputKind

if TYPE_CHECKING:
    from ros2_rfm_serving.errors import ConfigurationError
    from ros2_rfm_serving.operate.drafts import RobotDraft

TEXT_ENGINES = ("openai", "vllm")
PARAMETERS = {
    "cameras": "cameras",
    "state size": "state_size",
    "action names and order": "action_names",
    "control rate": "control_rate_hz",
}
"""Beginning of a difference -> the robot's parameter for it; other differences begin with the parameter."""


def known_contract(model: str, entry: CatalogueEntry) -> ModelContract | None:
    """Return a model's contract by its files; None: only the loaded model has it.
    Where no file tells, the contract allows everything: pipelining, any number of solver steps, the true Jacobian."""
    if entry.engine == "emulated":
        contract = contract_of(spec_of(model, entry))
    elif entry.engine == "bundle":
        found = _of_bundle(model, read_json(shipped("models") / entry.bundle / "config.json"))
        if found is None:
            return None
        contract = found
    elif entry.engine in TEXT_ENGINES:
        output = OutputKind(entry.output)
        contract = ModelContract(model=model, model_hash="", output=output, cameras=entry.cameras, state_size=entry.state_size)
    elif entry.engine == "remote" and entry.options.get("action_names"):
        contract = _of_sizes(model, entry.options, OutputKind.ACTION_CHUNK)
    else:
        return None
    widest = MAX_NUM_STEPS if contract.output is OutputKind.ACTION_CHUNK else 0
    return replace(contract, model=model, true_jacobian=True, pipelines=True, max_num_steps=widest)


def _of_bundle(model: str, config: Mapping[str, Any]) -> ModelContract | None:
    """Return None for a configuration that cannot be read; the server that loads it reports the reason."""
    try:
        network = config["network"]
        match config["kind"]:
            case "flow_policy":
                contract = _of_sizes(model, network, OutputKind.ACTION_CHUNK)
                return offered(contract, Predicts(network.get("predicts", Predicts.VELOCITY.value)))
            case "token_policy":
                contract = _of_sizes(model, network, OutputKind.ACTION_CHUNK)
                trained = (Conditioning.PREFIX,) if contract.max_inference_delay_steps else ()
                return replace(contract, conditionings=(Conditioning.NONE, *trained))
            case "judge" | "planner" as kind:
                output = OutputKind.JUDGEMENT if kind == "judge" else OutputKind.PLAN
                return ModelContract(model=model, model_hash="", output=output, cameras=tuple(network.get("cameras", ())))
            case "architecture":
                chunk_length = int(network.get("chunk_length", 0))
                contract = _of_sizes(model, {**config["contract"], "chunk_length": chunk_length}, OutputKind.ACTION_CHUNK)
                return offered(contract, Predicts(config.get("sampling", {}).get("predicts", Predicts.VELOCITY.value)))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return None


def _of_sizes(model: str, said: Mapping[str, Any], output: OutputKind) -> ModelContract:
    return ModelContract(
        model=model,
        model_hash="",
        output=output,
        action_names=tuple(said["action_names"]),
        cameras=tuple(said.get("cameras", ())),
        state_size=int(said.get("state_size", 0)),
        chunk_length=int(said.get("chunk_length", 0)),
        control_rate_hz=float(said.get("control_rate_hz", 0.0)),
        max_inference_delay_steps=int(said.get("max_inference_delay_steps", 0)),
    )


def read_json(file: Path) -> dict[str, Any]:
    """Return the JSON object of a file; {} for a missing or unreadable one, whose problem the model's loader reports."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def contracts_of(factory: Factory, catalogue: Catalogue) -> dict[str, ModelContract | None]:
    """Return the contract by files of each model of the tasks that have robots; None: only the loaded model has it.
    A model that is not in the catalogue is left out."""
    tasks = [factory.tasks[entry.task] for entry in factory.robot_fleet]
    models = dict.fromkeys(component.model for task in tasks for component in task.components.values())
    return {model: known_contract(model, catalogue.models[model]) for model in models if model in catalogue.models}


def contract_problems(
    robots: Iterable[RobotDraft], factory: Factory, contracts: Mapping[str, ModelContract | None]
) -> list[ConfigurationError]:
    """Return what would keep robots from opening a session with the models of their tasks, by the rules of the server.

    contracts: of models; one whose contract is unknown is left out. Horizon policies are not checked, because they may be installed
    where the servers run, and not here."""
    problems = []
    for robot in robots:
        components = factory.tasks[robot.settings.task].components
        for component, spec in sorted(components.items(), key=lambda item: item[0] != SYSTEM1):
            contract, config = contracts.get(spec.model), robot.settings.config
            if contract is None:
                continue
            request = replace(session_request(config, component), horizon=HorizonRequest())
            for problem in differences(contract, request, instruction="", strict_rate=not config.accept_other_rate):
                subject = problem.partition(":")[0]
                parameter = PARAMETERS.get(subject, subject if component == SYSTEM1 else "cameras")
                fix = f"write what {spec.model} was trained with, or name another model in {factory.file}"
                problems.append(robot.error(parameter, f"{component}: {problem}", fix))
    return problems
