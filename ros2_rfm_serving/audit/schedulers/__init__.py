"""Recording of a scheduler's plans with their inputs, and their replay.

book.py      schedule log: the last plan of a whole factory and the steps to the active schedule, for recordings
replay.py    repetition of the plans
"""
