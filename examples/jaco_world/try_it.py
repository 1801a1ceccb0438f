"""How often expert and policy succeed in the simulator alone, which stands still while they think:  python try_it.py [EPISODES]"""

import sys
from pathlib import Path

from jaco_world import JacoArm

from ros2_rfm_serving.engines.bundles import load_bundle
from ros2_rfm_serving.monitoring.board import wilson_interval
from ros2_rfm_serving.worlds.rollout import run_episodes

FIRST_SEED, MAX_STEPS = 1_000_000, 300  # of scenes that training never saw; 12 s
episodes = int((*sys.argv[1:], "100")[0])
seeds = [FIRST_SEED + k for k in range(episodes)]
arm = JacoArm()


def shown(who: str, steps: list[int]) -> None:
    low, high = wilson_interval(len(steps), episodes)
    print(f"{who}: {len(steps)}/{episodes}, 95 % {low:.1%} - {high:.1%}, {sum(steps) / max(len(steps), 1):.1f} steps to success")


def of_expert(seed: int) -> int:
    """Steps to success; 0: none."""
    arm.reset(seed)
    expert = arm.expert()
    for step in range(1, MAX_STEPS + 1):
        arm.step(expert.get_action(arm.state))
        if arm.success:
            return step
    return 0


shown("expert", [steps for steps in map(of_expert, seeds) if steps])
engine = load_bundle("jaco/reach-site", Path(__file__).parent / "models" / "reach_site_flow")
done = run_episodes(arm, engine, arm.instructions[0], seeds, execute=4, max_steps=MAX_STEPS)
shown("policy", [episode.steps for episode in done if episode.success])
arm.close()
