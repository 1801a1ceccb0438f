"""Why a robot did what it did at a moment, out of the audit log.

explanation.py  nouns: an explanation is a list of parts, each with words for people and facts for machines
moments.py      which control period is meant
behind.py       what a control period's command hangs on: its request, its chunk, and since when it is so
robot_parts.py  what the robot knew, asked, was answered and did
server_parts.py what the server did with the request
fleet_parts.py  what people said, and whose schedule was followed
explain.py      all of it, for one moment
"""
