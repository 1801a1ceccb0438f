"""List of incidents on the page, each with possible causes and its explanation."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from ros2_rfm_serving.audit.explain.explanation import Explanation, Part, clock, duration
from ros2_rfm_serving.audit.report.incidents import Incident


@dataclass(frozen=True, kw_only=True)
class Told:
    """Incident with its details on the page."""

    incident: Incident
    causes: Sequence[Incident] = ()
    effects: Sequence[Incident] = ()
    """Incidents that it may have caused."""
    notes: Sequence[str] = ()
    """Lines from the audit log of its server."""
    explanation: Explanation | None = None
    problem: str = ""
    """Reason why there is no explanation."""
    pictures: dict[str, bytes] = field(default_factory=dict)
    """Camera -> PNG."""


Ids = dict[int, str]
"""Anchors of incidents by their `id()`."""


def incident_list(told: Sequence[Told], damages: Sequence[str], ids: Ids) -> str:
    notes = "".join(f'<p class="soft">{escape(words)}</p>' for words in damages)
    if not told:
        return f'<h2>Incidents</h2><p class="soft">None.</p>{notes}'
    return f"<h2>Incidents</h2>{notes}{''.join(_incident(one, ids) for one in told)}"


def _incident(told: Told, ids: Ids) -> str:
    one = told.incident
    when = clock(one.at_s)[:-2] if math.isfinite(one.at_s) else "-"
    lasts = f" for {duration(one.until_s - one.at_s)}" if math.isfinite(one.until_s) else ""
    why = f'<br><span class="soft">{escape(one.why)}</span>' if one.why else ""
    summary = (
        f'<time>{when}</time><span class="kind k-{escape(one.kind.split()[0])}">{escape(one.kind)}</span>'
        f'<span class="what"><b>{escape(one.who)}</b> {escape(one.what)}{lasts}{why}</span>'
    )
    links = _links("May be why", told.causes, ids) + _links("May be the cause of", told.effects, ids)
    notes = "".join(f"<p>{escape(words)}</p>" for words in told.notes)
    inside = links + notes + _explanation(told) or '<p class="soft">Nothing more was recorded of it.</p>'
    return f'<details class="incident"><summary>{summary}</summary><div class="inside" id="{ids[id(one)]}">{inside}</div></details>'


def _links(words: str, incidents: Sequence[Incident], ids: Ids) -> str:
    links = [
        f'<a href="#{ids[id(one)]}">{clock(one.at_s)[:-2]} {escape(one.who)}: {escape(one.what)}</a>'
        for one in incidents
        if id(one) in ids
    ]
    return f"<p>{words}: {'; '.join(links)}</p>" if links else ""


def _explanation(told: Told) -> str:
    found = told.explanation
    if found is None:
        return f'<p class="soft">{escape(told.problem)}</p>' if told.problem else ""
    pictures = "".join(
        f'<figure><img alt="{escape(camera)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        f"<figcaption>{escape(camera)}</figcaption></figure>"
        for camera, png in told.pictures.items()
    )
    seen = f'<div class="images">{pictures}</div>' if pictures else ""
    head = f"<p><b>{escape(found.robot)} at {clock(found.stamp_s)}: {escape(found.headline)}</b></p>"
    return f"{head}{seen}<dl>{''.join(map(_part, found.parts))}</dl>"


def _part(part: Part) -> str:
    lines = "<br>".join(escape(line) for line in part.lines)
    return f"<dt>{escape(part.name)}</dt><dd{'' if part.known else ' class=unknown'}>{lines}</dd>"
