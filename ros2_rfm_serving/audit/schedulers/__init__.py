"""A scheduler's plans: kept with all that they were made from, and made once more.

book.py      from the last plan of a whole factory to the schedule in force; what a recording has of it
replay.py    the plans, made again
"""
