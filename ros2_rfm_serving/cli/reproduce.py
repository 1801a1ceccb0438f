"""`rfm reproduce`: the figures of papers, run anew."""

from __future__ import annotations

from ros2_rfm_serving.cli.verbs import verbs_app

VERBS = {
    "rosa": "ros2_rfm_serving.reproductions.rosa.run:rosa",
    "kairos": "ros2_rfm_serving.reproductions.kairos.run:kairos",
    "auras": "ros2_rfm_serving.reproductions.auras.run:auras",
    "vlacpp": "ros2_rfm_serving.reproductions.vlacpp.run:vlacpp",
}
app = verbs_app(VERBS, help="The figures of papers, run anew in the simulated factory and worlds.")
