"""Robots: what is recorded of one (`recorded.py`, in the form of `records.py`), and how it decides again (`replay.py`)."""
