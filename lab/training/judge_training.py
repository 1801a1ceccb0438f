"""Training of the embedded judge on frames of demonstrations."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from lab.training.demonstrated import Frames, Words, jittered
from lab.training.optimizing import LogRow, Report, TrainingConfig, optimized
from ros2_rfm_serving.engines.embedded.networks import JudgeConfig, JudgeNetwork


def train_judge(
    config: JudgeConfig,
    data: Frames,
    texts: Sequence[Sequence[str]],
    training: TrainingConfig,
    report: Report,
    eyes: JudgeNetwork | None = None,
) -> JudgeNetwork:
    """Train with cross-entropy on frames; every tenth episode is held out and its accuracy reported.

    eyes: a judge of the same cameras, whose convolutions are the initial ones.
    """
    torch.manual_seed(training.seed)
    rng = np.random.default_rng(training.seed)
    network = JudgeNetwork(config)
    if eyes is not None:
        network.convolutions.load_state_dict(eyes.convolutions.state_dict())
    held_out = data.frame_episode % 10 == 9
    train_rows, test_rows = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    words = Words(config.vocabulary, config.max_words, texts)
    counts = np.bincount(data.verdict[train_rows], minlength=len(config.verdicts))
    weight = torch.tensor(np.sqrt(counts.max() / np.maximum(counts, 1)), dtype=torch.float32)
    average = copy.deepcopy(network)

    def figures() -> dict[str, Tensor]:
        rows = rng.choice(train_rows, training.batch_size)
        images = jittered(torch.from_numpy(data.images[rows]), rng)
        logits = network(images, words.draw(data.frame_task[rows], rng))
        target = torch.from_numpy(data.verdict[rows].astype(np.int64))
        return {"loss": F.cross_entropy(logits, target, weight=weight, label_smoothing=0.02)}

    return optimized(
        network,
        average,
        replace(training, max_gradient=math.inf),
        figures,
        report,
        lambda: judge_accuracy(average, data, test_rows, words, rng),
    )


@torch.no_grad()
def judge_accuracy(
    network: JudgeNetwork, data: Frames, rows: npt.NDArray[np.int64], words: Words, rng: np.random.Generator
) -> LogRow:
    """Return the recall per verdict on the given frames, and the share of ONGOING frames that are classified as DONE."""
    predicted = np.concatenate(
        [
            network(torch.from_numpy(data.images[part]), words.draw(data.frame_task[part], rng)).argmax(1).numpy()
            for part in np.array_split(rows, max(1, len(rows) // 256))
        ]
    )
    truth = data.verdict[rows]
    recall = {
        f"recall_{name}": float((predicted[truth == i] == i).mean())
        for i, name in enumerate(network.config.verdicts)
        if (truth == i).any()
    }
    return {**recall, "false_done": float((predicted[truth == 0] == 1).mean())}
