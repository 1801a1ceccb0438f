"""The third body: what was decided is recorded, chained by hash, explained, and decided once more at a desk.

chain.py        records of one writer, each with the hash of all before it; what was changed, dropped, reordered or cut off
journal.py      what a writer notes while somebody listens: pages, seals, snapshots
codec.py        the brain's values, and whole brains, as JSON, and back
"""
