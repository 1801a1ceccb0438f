"""What a fleet lived through, as examples for the next policy.

frames.py       nouns: a frame (one executed action and what was known then), an episode, and what all episodes of a data set share
episodes.py     frames and episodes out of a recording; story.py: of one robot; labels.py: how they ended, and what they were about
lerobot.py      a LeRobotDataset of them, written by LeRobot
"""
