"""Export of a fleet's recorded episodes as training data.

frames.py       data types: a frame (one executed action with its inputs), an episode, and the common shape of a data set
episodes.py     frames and episodes of a recording; story.py: those of one robot; labels.py: their outcomes and tasks
lerobot.py      a LeRobotDataset of the episodes, written by LeRobot
"""
