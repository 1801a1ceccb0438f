"""Parameters of a recorder."""

from __future__ import annotations

from ros2_rfm_serving.ros.node.parameters import Spec

SPECS = {
    "folder": Spec(
        "", "Where to; empty: recordings/<time>; has it a recording, <folder>_2. With flight_s: a folder in it per incident"
    ),
    "name": Spec("", "Of this recorder, in its records; empty: this host's"),
    "cameras": Spec(False, "Camera topics too; what the models were shown is in the observations"),
    "topics": Spec([""], "Patterns of further topics, such as `/cell_3/*`"),
    "exclude": Spec([""], "Patterns of topics that are left out"),
    "robots": Spec([""], "Robots that will be there soon, whose first words are not to be missed; the others are found"),
    "servers": Spec([""], "Servers that will be there soon"),
    "split_mb": Spec(1024.0, "Another file from this size on, MB; 0: never", 0.0, 1e7),
    "split_minutes": Spec(15.0, "Another file after this time, min; 0: never", 0.0, 1e6),
    "keep_gb": Spec(0.0, "The oldest files are removed beyond this, GB; 0: never", 0.0, 1e6),
    "keep_days": Spec(0.0, "Older files are removed, days; 0: never", 0.0, 1e5),
    "queue_mb": Spec(256.0, "What waits for the disk; what comes beyond is lost, and counted, MB", 1.0, 1e6),
    "linger_s": Spec(0.0, "Told to end, it waits for the last words of robots and servers for so long, s", 0.0, 60.0),
    "flight_s": Spec(
        0.0, "Keep so much in memory, and write it when something happens, s; 0: write everything at once", 0.0, 3600.0
    ),
    "after_s": Spec(10.0, "That is written after what happened, with flight_s, s", 0.0, 3600.0),
    "flight_mb": Spec(512.0, "In memory at most, with flight_s, MB", 1.0, 1e6),
    "incidents_per_hour": Spec(12, "Written at most, with flight_s", 1, 3600),
}
