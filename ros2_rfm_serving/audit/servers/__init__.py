"""A server's decisions: kept as records while it serves, and made once more.

witness.py      every call of a `ServerBrain`, in the order of its lock, as a note: what the lock is held for is one append
records.py      notes as records
reading.py      records as calls
snapshots.py    all that a brain holds, without engines and images
replay.py       the calls, made again
infer.py        recorded batches, run again (rerun.py: of a whole recording; engines.py, observations.py: what it takes)
journal.py      a live server's notes on their way into its journal
"""
