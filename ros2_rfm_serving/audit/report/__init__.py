"""A shift on one page.

tracks.py       what robots and servers said of themselves, over time
figures.py      success, SLOs and refusals, counted from that
incidents.py    what went wrong or was done by people, and when
causes.py       what came before an incident and may be why
around.py       what a server's own audit log says then
svg.py          timelines and small curves
style.py        the page's look
tables.py       tables and durations in HTML
page.py         the page; incident_page.py its incidents
report.py       all of it, for one recording
"""
