"""Report of a shift on one page.

tracks.py       statuses of robots and servers over time
figures.py      success, SLOs and refusals by those statuses
incidents.py    incidents and operator commands with their times
causes.py       possible causes of an incident by time
around.py       context of an incident from a server's own audit log
svg.py          timelines and small curves
style.py        style sheet of the page
tables.py       tables and durations in HTML
page.py         the page; incident_page.py for its incidents
report.py       the report of one recording
"""
