"""Style sheet of the page, for dark and light themes, phones, and print."""

COLOURS = {
    "streaming": ("#3f9b6c", "#4cae7c"),
    "ready": ("#3f9b6c", "#4cae7c"),
    "connecting": ("#9fb1c1", "#64748b"),
    "loading": ("#9fb1c1", "#64748b"),
    "degraded": ("#d99a2b", "#e0a83f"),
    "draining": ("#d99a2b", "#e0a83f"),
    "reconnecting": ("#8a63b8", "#a583d1"),
    "stalled": ("#cc4b3e", "#e0675b"),
    "failed": ("#cc4b3e", "#e0675b"),
    "hung": ("#cc4b3e", "#e0675b"),
    "lost": ("#cc4b3e", "#e0675b"),
    "dead": ("#5b1e1a", "#f0a199"),
    "paused": ("#2f6fae", "#5b9bd8"),
    "stopped": ("#2f6fae", "#5b9bd8"),
    "waiting": ("#2f6fae", "#5b9bd8"),
    "idle": ("#d9dee3", "#333c46"),
    "unknown": ("#d9dee3", "#333c46"),
}
"""State -> colour in the light and in the dark theme."""

_LIGHT = "--bg:#fff;--fg:#1b2430;--soft:#5d6b7a;--line:#dfe5ea;--card:#f6f8fa;--accent:#1f6fb2;--bad:#b3362a"
_DARK = "--bg:#12171d;--fg:#e6edf3;--soft:#93a1b0;--line:#2a323b;--card:#1a2129;--accent:#6fb3ee;--bad:#f0877c"


def css() -> str:
    light = "".join(f".s-{name}{{fill:{colour};background:{colour}}}" for name, (colour, _) in COLOURS.items())
    dark = "".join(f".s-{name}{{fill:{colour};background:{colour}}}" for name, (_, colour) in COLOURS.items())
    return f":root{{color-scheme:light dark;{_LIGHT}}}{_RULES}{light}@media(prefers-color-scheme:dark){{:root{{{_DARK}}}{dark}}}"


_RULES = """
*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1.5rem 1.25rem 4rem;background:var(--bg);color:var(--fg);
 font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
h1{font-size:1.6rem;margin:.2rem 0}h2{font-size:1.15rem;margin:2.2rem 0 .7rem}
p{margin:.3rem 0}.soft,.soft a{color:var(--soft)}a{color:var(--accent)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.7rem;margin:1.2rem 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:.6rem;padding:.7rem .9rem}
.tile b{display:block;font-size:1.45rem;line-height:1.25;font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto}.scroll+.scroll{margin-top:1.4rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th{text-align:left;font-weight:600;color:var(--soft);font-size:.82rem}
th,td{padding:.4rem 1.1rem .4rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td.num,th.num{text-align:right}td.num{white-space:nowrap}td.num+td:not(.num),th.num+th:not(.num){padding-left:1rem}
svg.timeline{display:block;width:100%;min-width:40rem;height:auto}
svg.timeline text{fill:var(--fg);font-size:12px}svg.timeline text.axis{fill:var(--soft);font-size:11px}
svg .grid{stroke:var(--line)}svg .mark{fill:var(--bad)}
svg.spark{width:10rem;height:1.75rem;display:block}svg.spark polyline{fill:none;stroke:var(--accent);stroke-width:1.5}
.legend{display:flex;flex-wrap:wrap;gap:.3rem 1rem;font-size:.82rem;color:var(--soft);margin-top:.5rem}
.legend i{display:inline-block;width:.8rem;height:.8rem;border-radius:.2rem;margin-right:.35rem;vertical-align:-.1rem}
details.incident{border:1px solid var(--line);border-radius:.6rem;margin:.5rem 0;background:var(--card)}
details.incident:has(:target){outline:2px solid var(--accent)}
summary{cursor:pointer;padding:.55rem .8rem;display:grid;
 grid-template-columns:7.2rem 5.5rem 1fr;gap:.2rem .8rem;align-items:baseline}
summary::-webkit-details-marker{display:none}
summary time::before{content:"\\25B8";display:inline-block;width:1.1em}details[open]>summary time::before{content:"\\25BE"}
summary time{font-variant-numeric:tabular-nums;color:var(--soft)}
.kind{font-size:.78rem;border:1px solid var(--line);border-radius:1rem;padding:0 .55rem;text-align:center;white-space:nowrap}
.k-held,.k-stopped,.k-server{color:var(--bad);border-color:var(--bad)}
.inside{padding:.2rem .9rem 1rem;border-top:1px solid var(--line)}
dl{display:grid;grid-template-columns:6.5rem 1fr;gap:.25rem .8rem;margin:.7rem 0}
dt{font-weight:600;color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}dd.unknown{color:var(--soft);font-style:italic}
.images{display:flex;flex-wrap:wrap;gap:.7rem}.images figure{margin:0}
.images img{width:11rem;max-width:44vw;image-rendering:pixelated;border-radius:.4rem;border:1px solid var(--line);display:block}
figcaption{font-size:.78rem;color:var(--soft)}
@media(max-width:40rem){body{padding:1rem .8rem 3rem;font-size:14px}summary{grid-template-columns:1fr auto}
 summary .what{grid-column:1/-1}dl{grid-template-columns:1fr}dt{margin-top:.4rem}}
@media print{details.incident{break-inside:avoid}}
"""
