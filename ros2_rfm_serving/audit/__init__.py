"""The third body: what was decided is recorded, chained by hash, explained, and decided once more at a desk.

chain.py        records of one writer, each with the hash of all before it; what was changed, dropped, reordered or cut off
bag.py          a recording, read: over mcap_scan.py, where what lies in a file, whole or cut off, and message_types.py
journal.py      what a writer notes while somebody listens: pages, seals, snapshots
bag_writer.py   a rosbag2 folder, written: splits; over bag_metadata.py, metadata.yaml, mcap_file.py, one file, and mcap_chunk.py
recording/      what `rfm record` does, without ROS
values.py       names of all classes whose values are recorded; codec.py, values as JSON, and back
verify.py       all chains of a recording, and what the recorder's own says of the others
replay.py       decisions made again, and compared; robots/, servers/, schedulers/ for what each role records
whatif/         what would have happened with other settings, in virtual time
playing.py      what of a recording is shown to people again, and when
log.py          records by time, by writer, and by the request that they belong to: explain/ one moment, report/ a shift on one page
export/         what robots lived through, as a data set for training
"""
