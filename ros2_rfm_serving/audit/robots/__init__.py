"""Recording of a robot's decisions (`recorded.py`, in the form of `records.py`), and their replay (`replay.py`)."""
