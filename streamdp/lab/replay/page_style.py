"""The look of our pages: one style sheet, light and dark, and the labels that every page has."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from streamdp.wire.unprotected import NOT_PRIVATE

COLOURS = tuple(f"--c{number}" for number in range(1, 9))

BANNER = (
    f'<p class="banner"><strong>{NOT_PRIVATE}.</strong> This page is computed from the log itself.'
    " Treat it as you treat the log. Choices made after reading it are not covered by any ε.</p>"
)

EXACT = (
    '<p class="exact"><strong>This replay is exact</strong> if the log holds, for every slot, the'
    " loss of every action as it would have been whatever was played. Then losses do not depend on"
    " the action in force, and there are no importance weights to trust. <strong>It stops being"
    " true</strong> when vectors were assembled from a bandit log (only the played action's loss"
    " was seen, and the others were imputed or reweighted), or when what was played changed what"
    " happened next.</p>"
)

_STYLE = """
:root{color-scheme:light dark;--bg:#fcfcfb;--ink:#1c1c1a;--soft:#5b5b57;--muted:#8f8f8a;
--rule:#e4e4e0;--panel:#fff;--warn-bg:#fdecea;--warn:#8c1d12;--c1:#2563a8;--c2:#c2571a;--c3:#2f7d4f;
--c4:#8a4fae;--c5:#b58900;--c6:#0f8b8d;--c7:#b03060;--c8:#5b6f2a}
@media (prefers-color-scheme:dark){:root{--bg:#171816;--ink:#ecece8;--soft:#b3b3ad;--muted:#85857f;
--rule:#32342f;--panel:#1f211e;--warn-bg:#3b1a16;--warn:#ffb4a8;--c1:#6ea8e8;--c2:#ee9a5d;
--c3:#6cc492;--c4:#c493e6;--c5:#e0bd4a;--c6:#57c7c9;--c7:#ee83ab;--c8:#b2c76a}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.5 system-ui,-apple-system,
"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1080px;margin:0 auto;padding:1.5rem 1rem 4rem}
h1{font-size:1.5rem;line-height:1.25;margin:.2rem 0 .3rem;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:0 0 .3rem}
p{margin:.3rem 0 .9rem;max-width:80ch}
section{margin-top:2.4rem}section>p{color:var(--soft);font-size:.93rem}
.facts{color:var(--soft)}
.banner{background:var(--warn-bg);color:var(--warn);padding:.7rem .9rem;border-radius:6px;
border-left:4px solid var(--warn);max-width:none}
.exact{max-width:none;color:var(--soft);font-size:.93rem}
.exact strong{color:var(--ink)}
dl.summary{margin:.4rem 0 0}
dl.summary dt{font-weight:600}dl.summary dd{margin:0 0 .8rem;max-width:80ch}
.panels{display:grid;gap:1rem}.panel{min-width:0;padding:.6rem .2rem}
.panel .legend{flex-direction:column;gap:.5rem;margin:.3rem 0}
.of2{grid-template-columns:repeat(2,minmax(0,1fr))}.of3{grid-template-columns:repeat(3,minmax(0,1fr))}
@media (max-width:860px){.of3{grid-template-columns:repeat(2,minmax(0,1fr))}
.of3>:last-child:nth-child(odd){grid-column:1/-1}}
@media (max-width:560px){.of2,.of3{grid-template-columns:minmax(0,1fr)}}
.plot{margin:.4rem 0 0;background:var(--panel);border:1px solid var(--rule);border-radius:6px;
padding:.6rem .9rem .5rem 3.2rem;min-width:0}
.plot figcaption{font-weight:600;margin-left:-2.4rem}
.ylabel,.xlabel{color:var(--soft);font-size:.84rem}
.ylabel{margin:0 0 .35rem -2.4rem}.xlabel{text-align:right;margin-top:1.5rem}
.area{position:relative;height:240px;border-left:1px solid var(--muted);
border-bottom:1px solid var(--muted)}
section>.plot .area{height:320px}
.area svg{position:absolute;inset:0;width:100%;height:100%;overflow:hidden}
.area span{position:absolute;color:var(--soft);font-size:.82rem;font-variant-numeric:tabular-nums;
white-space:nowrap}
.xt{top:100%;transform:translateX(-50%);padding-top:.25rem}
.yt{right:100%;transform:translateY(50%);padding-right:.4rem}
svg path{fill:none;vector-effect:non-scaling-stroke;stroke-width:2;stroke-linejoin:round}
svg .grid{stroke:var(--rule);stroke-width:1}
svg .dashed{stroke-dasharray:6 4;stroke-width:1.6}svg .dotted{stroke-dasharray:1.5 4;
stroke-linecap:round}
svg .points{stroke-width:7;stroke-linecap:round}
svg .band{opacity:.14;stroke:none}svg .whisker{stroke-width:5;opacity:.35}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.25rem 1.1rem;margin:.3rem 0 .6rem;
padding:0;font-size:.88rem}
.legend li{display:flex;align-items:center;overflow-wrap:anywhere}
.legend i{flex:none;width:1.6rem;border-top:3px solid;margin-right:.45rem}
.legend .dashed{border-top-style:dashed}.legend .dotted{border-top-style:dotted}
.legend .points{border-top-width:7px;width:.5rem;border-radius:4px}
.legend .box{border:0;width:.9rem;height:.9rem;border-radius:2px}
.strip{display:grid;grid-template-columns:11rem 1fr;align-items:center;margin:.3rem 0;
font-size:.85rem;gap:.6rem}
.strip>span{text-align:right;color:var(--soft)}
.strip>div{display:flex;height:1.5rem;border-radius:3px;overflow:hidden;background:var(--rule)}
.strip b{display:block;height:100%}
.wide{overflow-x:auto;border:1px solid var(--rule);border-radius:6px;background:var(--panel)}
table{border-collapse:collapse;width:100%;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{padding:.4rem .7rem;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
th:first-child,td:first-child{text-align:left}
tbody tr:last-child td{border-bottom:0}
th{color:var(--soft);font-weight:600;white-space:normal;vertical-align:bottom;min-width:4rem}
wbr{display:none}
th:nth-child(n+3){min-width:6.2rem}
@media (max-width:560px){.strip{grid-template-columns:1fr;gap:.1rem}.strip>span{text-align:left}
section>.plot .area{height:250px}.plot{padding-right:.6rem}
th,td{padding:.4rem .5rem}td:first-child{white-space:normal;overflow-wrap:anywhere}
th:first-child{min-width:10rem}wbr{display:inline}}
@media print{.plot,.wide{break-inside:avoid}}
"""


def document(title: str, body: str) -> str:
    """A self-contained page."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def section(title: str, text: str, body: str) -> str:
    """A part of a page: a heading, a paragraph, and content."""
    head = f"<h2>{joined(escape(title))}</h2><p>{joined(escape(text))}</p>"
    return f"<section>{head}{body}</section>"


def joined(text: str) -> str:
    """The text with the parts of each formula kept on one line."""
    return text.replace(" = ", "\u00a0=\u00a0").replace(" ± ", "\u00a0±\u00a0")


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls by itself if it is too wide; learners' names may break at colons."""
    top = "".join(f"<th>{escape(title)}</th>" for title in head)
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines).replace(":", ":<wbr>")
    return (
        f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    )
