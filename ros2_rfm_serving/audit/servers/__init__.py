"""Recording of a server's decisions, and their replay.

witness.py      every call of a `ServerCore`, in the order of its lock, as a note: the lock is held for one append only
records.py      conversion of notes into records: events with their answers
reading.py      conversion of records into events
snapshots.py    configuration, contract, limits and state of a decision core
replay.py       repetition of the decisions
infer.py        repeated inference of recorded batches (rerun.py: whole recordings; engines.py, observations.py: its inputs)
journal.py      transfer of a live server's notes into its journal
"""
