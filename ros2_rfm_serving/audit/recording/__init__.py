"""Recording without ROS: received messages go through a bounded queue to a writing thread.

topics.py       selection of a factory's topics
intake.py       the queue
recorder.py     work of the thread: bag, splits, retention, losses; ledger.py: the recorder's own chain of records
incidents.py    detection of incidents; flight.py: the last seconds in memory, which are written after an incident
recover.py      recovery of recordings that were cut off
"""
