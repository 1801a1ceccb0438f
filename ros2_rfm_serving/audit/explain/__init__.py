"""Explanation of a robot's behaviour at a moment, from the audit log.

explanation.py  data types: an explanation is a list of parts, each with text for people and facts for programs
moments.py      the control period of a requested time
behind.py       provenance of a control period's command: its request, its chunk, and the time since when it holds
robot_parts.py  inputs, requests, replies and actions of the robot
server_parts.py processing of the request on the server
fleet_parts.py  commands of operators, and the active schedule
explain.py      all parts for one moment
"""
