"""Text models behind a model server: what is no plan and no verdict, whom they serve, and a robot of a thinking planner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ros2_rfm_serving.engines.base import Engine
from ros2_rfm_serving.errors import ContractError, ModelError, UnusableAnswerError
from ros2_rfm_serving.server import ModelServer, ServerConfig
from ros2_rfm_serving.types import (
    MONITOR,
    SAFETY,
    SYSTEM2,
    EncodedImage,
    EngineReply,
    InferenceRequest,
    JudgeVerdict,
    ModelContract,
    ObservationRequest,
    OutputKind,
    Reply,
    RequestId,
    SessionRequest,
    SubgoalPlan,
    empty,
)
from test.unit.engines.chat_server import JPEG, Turn, engine, says, server
from test.unit.robot.robot_world import Sent
from test.unit.robot.test_plans import CONFIG, PlannedWorld

THOUGHT = "Okay, the user wants the cup on the shelf."
ROBOT_CAMERAS = ("front", "wrist")


class Writer(Engine):
    """Somebody's own engine, which hands on what its model wrote."""

    def __init__(self, answer: Callable[[], Any], cameras: tuple[str, ...] = ()) -> None:
        self.answer, self.seen = answer, list[tuple[str, ...]]()
        self._contract = ModelContract(model="writer", model_hash="h", output=OutputKind.JUDGEMENT, cameras=cameras)

    @property
    def contract(self) -> ModelContract:
        return self._contract

    @property
    def max_batch_size(self) -> int:
        return 4

    def warm_up(self) -> None: ...

    def infer(self, requests: Sequence[InferenceRequest]) -> list[EngineReply | ModelError]:
        self.seen += [tuple(request.images) for request in requests]
        return [self.answer() for _ in requests]


class Asking:
    """Robots of one model server, one request after the other."""

    def __init__(self, model: Engine, **config: Any) -> None:
        self.server = ModelServer(ServerConfig(name="s1", **config), model)
        self._epochs: dict[str, int] = {}
        self._sequence = 0

    def __call__(self, component: str, instruction: str = "go", cameras: tuple[str, ...] = ()) -> Reply | None:
        if component not in self._epochs:
            grant = self.server.open_session(SessionRequest(robot="r1", component=component, cameras=cameras))
            self._epochs[component] = grant.session_epoch
        self._sequence += 1
        identity = RequestId(
            robot="r1", component=component, session_epoch=self._epochs[component], episode=1, sequence=self._sequence
        )
        images = tuple(EncodedImage(camera=camera, format="jpeg", data=JPEG) for camera in cameras)
        asked = ObservationRequest(id=identity, stamp_ns=0, instruction=instruction, state=empty(0), images=images)
        self.server.submit(asked, float(self._sequence))
        replies = self.server.loop.step(lambda: float(self._sequence))
        return replies[0] if replies else None


# --- what is no answer ------------------------------------------------------------------------------------------------------


def test_a_refused_plan_is_counted_with_its_text_and_reaches_nobody() -> None:
    """And is no failure of the engine, which is not given up for it."""
    texts = [f"<think>{THOUGHT}</think>lift the cup", THOUGHT, f"<think>{THOUGHT}"]
    with server(lambda body, i: says(texts[i % 3])) as (url, _), engine(url, cameras=("front",)) as model:
        ask = Asking(model, max_engine_errors=1)
        replies = [ask(SYSTEM2, cameras=("front",)) for _ in range(6)]
    assert [reply.subgoals if isinstance(reply, SubgoalPlan) else None for reply in replies] == [("lift the cup",), None, None] * 2
    assert ask.server.refused == {"plan_violation": 4} and ask.server.answers == {"plan": 2}
    assert "cut off in its thoughts" in ask.server.last_refusals["plan_violation"] and not ask.server.given_up


def test_a_violation_of_a_judge_is_kept_in_words() -> None:
    texts = ["safe", f"<think>{THOUGHT}", "rather safe"]
    with server(lambda body, i: says(texts[i])) as (url, _), engine(url) as model:
        ask = Asking(model)
        verdicts = [ask(SAFETY, cameras=("front",)) for _ in texts]
    assert [verdict.verdict for verdict in verdicts if isinstance(verdict, JudgeVerdict)] == ["safe", "", ""]
    assert ask.server.last_refusals == {"verdict_violation": "'rather safe', it is none of safe, unsafe"}
    assert ask.server.answers == {"verdict": 3} and ask.server.refused == {"verdict_violation": 2}


def test_an_empty_plan_is_a_plan() -> None:
    with server(lambda body, i: says('{"subgoals": []}')) as (url, _), engine(url) as model:
        reply = Asking(model)(SYSTEM2, cameras=("front",))
    assert isinstance(reply, SubgoalPlan) and reply.subgoals == ()


@pytest.mark.parametrize("text", [f"<think>\n{THOUGHT}\n</think>\nlift", f"{THOUGHT}</think>lift", f"[THINK]{THOUGHT}[/THINK]lift"])
def test_whatever_engine_runs_the_model_its_thoughts_are_no_plan(text: str) -> None:
    ask = Asking(Writer(lambda: EngineReply(text=text)))
    assert ask(SYSTEM2) is None and ask.server.refused == {"plan_violation": 1}
    ask = Asking(Writer(lambda: EngineReply(verdict=text)))
    judged = ask(MONITOR)
    assert isinstance(judged, JudgeVerdict) and judged.verdict == "" and ask.server.refused == {"verdict_violation": 1}


def test_an_engine_that_raises_what_cannot_be_used_is_not_given_up() -> None:
    def refuse() -> EngineReply:
        raise UnusableAnswerError("the answer is no plan: it is an apology", "I'm sorry")

    ask = Asking(Writer(refuse), max_engine_errors=2)
    assert [ask(SYSTEM2) for _ in range(4)] == [None] * 4
    assert not ask.server.given_up and ask.server.refused == {"plan_violation": 4}


def test_a_text_that_no_message_can_hold_reaches_nobody() -> None:
    ask = Asking(Writer(lambda: EngineReply(text="lift \ud800 the cup", verdict="ongoing")))
    assert ask(SYSTEM2) is None and ask(MONITOR) is None and ask.server.refused == {"bad_output": 2}


# --- cameras ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cameras", [(), ("front",), ("wrist",), ("wrist", "front")])
def test_a_text_model_gets_of_the_robots_cameras_those_that_it_was_declared_with(cameras: tuple[str, ...]) -> None:
    model = Writer(lambda: EngineReply(text="lift"), cameras)
    assert isinstance(Asking(model)(SYSTEM2, cameras=ROBOT_CAMERAS), SubgoalPlan)
    assert {camera for seen in model.seen for camera in seen} == set(cameras)


def test_a_text_model_with_a_camera_that_the_robot_has_not_is_refused_in_words() -> None:
    with pytest.raises(ContractError, match=r"cameras: the robot has \('front', 'wrist'\), the model \('overhead',\)"):
        Asking(Writer(lambda: EngineReply(text="lift"), ("overhead",)))(SYSTEM2, cameras=ROBOT_CAMERAS)


# --- a robot ----------------------------------------------------------------------------------------------------------------


class ThinkingWorld(PlannedWorld):
    """System 2 is a text model behind a model server."""

    def __init__(self, ask: Asking) -> None:
        patient = replace(CONFIG.policy, max_consecutive_slo_violation=1000)  # a refused plan is a late one
        super().__init__(replace(CONFIG, calls_per_action={"system2": 0.5}, policy=patient))
        self._ask = ask
        self.instructions: set[str] = set()

    def _serve(self, sent: Sent) -> None:
        if sent.request.id.component == SYSTEM2:
            plan = self._ask(SYSTEM2, sent.request.instruction, ("front",))
            if not isinstance(plan, SubgoalPlan):
                return
            self.plans = lambda prompt: plan.subgoals
        super()._serve(sent)

    def run(self, seconds: float) -> list[Any]:
        commands = super().run(seconds)
        self.instructions.add(self.brain.instruction)
        return commands


FORMS = (
    "<think>\n{}\n</think>\n\n1. lift\n2. place",
    "{}\n</think>\n\nlift\nplace",
    "<think>{}",
    "{}",
    "[THINK]{}[/THINK]lift\nplace",
    "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>lift\nplace",
    "<|channel|>analysis<|message|>{}",
    'Sure! Here is the plan:\n```json\n{{"reasoning": "{}", "subgoals": ["lift", "place"]}}\n```',
    '{{"subgoals": ["{}"]}}',
    '{{"subgoals": []}}',
)


@pytest.fixture
def thinking() -> Iterator[ThinkingWorld]:
    rng = np.random.default_rng(7)

    def script(body: dict[str, Any], number: int) -> Turn:
        return says(str(rng.choice(FORMS)).format(THOUGHT), "stop" if rng.random() < 0.8 else "length")

    with server(script) as (url, _), engine(url) as model:
        yield ThinkingWorld(Asking(model))


def test_a_thinking_planner_never_makes_its_thoughts_a_robots_instruction(thinking: ThinkingWorld) -> None:
    """Its plans are followed all the same, and an empty one leaves the robot at what it does."""
    for _ in range(300):
        thinking.run(0.1)
    assert thinking.instructions == {"both", "lift"}, "the task, until there is a plan; then its first subgoal"
    asked = thinking._ask.server
    assert asked.answers["plan"] > 3 and asked.refused["plan_violation"] > 3


def test_an_empty_plan_leaves_the_robot_at_its_subgoal_until_the_monitor_says_that_it_is_done() -> None:
    made = PlannedWorld()
    made.run_until(lambda: made.brain.instruction == "reach")
    made.plans = lambda prompt: ()
    made.run_until(lambda: made.brain.plan == ("reach",))
    assert made.brain.instruction == "reach"
    made.conditions.words["monitor"] = "done"
    made.run_until(lambda: made.brain.task is not None and made.brain.task.result is not None)


def test_without_a_plan_an_empty_one_leaves_the_robot_at_its_task() -> None:
    made = PlannedWorld()
    made.plans = lambda prompt: ()
    made.run(2.0)
    assert made.brain.instruction == "both" and made.brain.plan == ()
