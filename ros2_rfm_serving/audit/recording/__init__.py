"""Recording, without ROS: what is heard goes through a bounded queue to a thread of its own, which writes it.

topics.py       what of the graph belongs to a factory's recording
intake.py       the queue
recorder.py     the thread's work: bag, splits, retention, what is lost; ledger.py: the recorder's own chain of records
incidents.py    when something happened that somebody will ask about; flight.py: the last seconds in memory, written then
recover.py      mends what was cut off
"""
