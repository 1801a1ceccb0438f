"""The third body: what was decided is recorded, chained by hash, explained, and decided once more at a desk.

chain.py        records of one writer, each with the hash of all before it; what was changed, dropped, reordered or cut off
bag.py          a recording, read: over mcap_scan.py, where what lies in a file, whole or cut off, and message_types.py
bag_writer.py   a rosbag2 folder, written: splits, metadata.yaml; over mcap_file.py, one file, chunk by chunk
journal.py      what a writer notes while somebody listens: pages, seals, snapshots
servers/        a server's decisions, kept and made once more
schedulers/     the schedules of a factory, kept and made once more
codec.py        the brain's values, and whole brains, as JSON, and back
"""
