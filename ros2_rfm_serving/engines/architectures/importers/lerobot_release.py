"""Rules that tell which LeRobot release trained a checkpoint of pi0 or pi0.5, as releases give different inputs to the network.

Up to 0.4.4 pi0.5's prompt had the state with its padding (`Pi05PrepareStateTokenizerProcessorStep`), and images that are not square
got borders of -1 where black is 0 (`resize_with_pad_torch`); both ended with 0.5.0.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ros2_rfm_serving.engines.architectures.importers.base import ImportOptions
from ros2_rfm_serving.engines.architectures.importers.files import Json, read_json
from ros2_rfm_serving.engines.lerobot_format import PADDED_STATE, RELEASES, RUN, is_of_0_4
from ros2_rfm_serving.errors import ModelError

DARKER = -1.0
ASSUMED = "taken for LeRobot 0.4's: borders of images that are not square are -1, not black; give --release 0.5 if 0.5.0 trained it"


class Release(NamedTuple):
    of_0_4: bool
    """True if LeRobot 0.4 trained it."""
    note: str = ""
    """Assumption, for the model card; empty if there is none."""


def release_of(config: Json, kind: str, state_size: int, wishes: ImportOptions) -> Release:
    """Return the release that trained a checkpoint.

    The four weeks of 0.5.0 look like 0.4, which is assumed if only images differ. Raises: `ModelError` if the release is unknown
    and the prompt differs.
    """
    run = config.file.with_name(RUN)
    of_0_4 = is_of_0_4(config.content, read_json(run).content if run.is_file() else None)
    if wishes.release:
        given = _is_0_4(wishes.release)
        saved = "0.4" if of_0_4 else "0.5 or later"
        contradicts = f"--release {wishes.release} counts, although the checkpoint's files were written by LeRobot {saved}"
        return Release(given, "" if of_0_4 in (None, given) else contradicts)
    if of_0_4 is not None:
        return Release(of_0_4)
    if kind == "pi05" and state_size < PADDED_STATE:
        if wishes.state_words:
            return Release(wishes.state_words != state_size)
        raise ModelError(
            f"{config.file}: LeRobot 0.4 or 0.5.0 trained it, which differ in the state in pi0.5's prompt, and no {RUN} beside it "
            "says which: give --release 0.4 or --release 0.5"
        )
    return Release(True, ASSUMED)


def _is_0_4(release: str) -> bool:
    """Return whether a release that the user gave, with or without its patch number, is one of 0.4. Raises: `ModelError`."""
    series = next((each for each in RELEASES if re.fullmatch(rf"{re.escape(each)}(\.\d+)?", release)), None)
    if series is None:
        raise ModelError(f"--release: {release!r} is no release that is known: give {', '.join(RELEASES)}, or one such as 0.4.4")
    return series == RELEASES[0]
