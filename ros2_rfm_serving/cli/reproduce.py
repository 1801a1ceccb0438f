"""`rfm reproduce`: the figures of papers, run anew."""

from __future__ import annotations

from ros2_rfm_serving.cli.verbs import verbs_app

VERBS = {
    "rosa": "lab.reproductions.rosa.run:rosa",
    "kairos": "lab.reproductions.kairos.run:kairos",
    "auras": "lab.reproductions.auras.run:auras",
    "vlacpp": "lab.reproductions.vlacpp.run:vlacpp",
}
app = verbs_app(VERBS, help="The figures of papers, run anew in the simulated factory and worlds.")
