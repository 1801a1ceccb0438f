"""Robots: what is noted of one (`recorded.py`, in the words of `told.py`), and how it decides once more (`replay.py`)."""
