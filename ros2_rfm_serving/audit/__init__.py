"""Recording of decisions in hash chains, their explanation, and their replay: the third adapter of the decision cores.

chain.py        hash chains of one writer's records; detection of changed, dropped, reordered or missing records
bag.py          reader of recordings; mcap_scan.py finds the contents of a file, whole or cut off; message_types.py reads messages
journal.py      event log of one writer, active while there are subscribers: pages, seals, snapshots
bag_writer.py   writer of a rosbag2 folder with splits; bag_metadata.py for metadata.yaml, mcap_file.py for a file, mcap_chunk.py
recording/      work of `rfm record`, without ROS
values.py       names of all classes whose values are recorded; codec.py converts values to JSON and back
verify.py       verification of all chains of a recording, with the recorder's reports about the others
replay.py       repetition and comparison of decisions; robots/, servers/, schedulers/ for the records of each role
whatif/         replay with other settings in virtual time
playing.py      selection and timing of recorded messages for viewers
log.py          records by time, by writer and by request; explain/ for one moment, report/ for a shift on one page
export/         training data sets from recorded episodes
"""
