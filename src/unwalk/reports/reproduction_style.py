"""What the reproduction's page adds to the style sheet: marks of agreement, wide tables, bands."""

from __future__ import annotations

LIGHT = {
    "agree": "#07614e",
    "agree-tint": "#dcf2ea",
    "near": "#6f4700",
    "near-tint": "#fbeecb",
    "differ": "#96270a",
    "differ-tint": "#fce1d8",
}
DARK = {
    "agree": "#7fe0c2",
    "agree-tint": "#123a30",
    "near": "#f3cf7a",
    "near-tint": "#3b3013",
    "differ": "#ffb8a0",
    "differ-tint": "#4a231a",
}


def _variables(palette: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in palette.items())


SHEET = """
main,header,footer{max-width:1340px}
header .story{margin-bottom:12px}
a{color:var(--main);text-underline-offset:2px}
a:focus-visible{outline:2px solid var(--main);outline-offset:2px}
h2{scroll-margin-top:12px}
h3 small{font-weight:400;color:var(--soft);font-size:14px}
h3.sub{margin:24px 0 0;font-size:18px}
h4{margin:0;font-size:16px;color:var(--ink)}
.sets{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,530px),1fr));gap:16px;
margin-top:12px;align-items:start}
.sets.stacked{grid-template-columns:minmax(0,960px)}
.sets.one{grid-template-columns:minmax(0,760px)}
.set h3{margin-bottom:6px}
.set table{font-size:14px}
.set th,.set td{padding:6px}
.set thead th{font-size:13px}
.set thead .group{text-align:left}
.set thead .other{font-weight:400;color:var(--soft)}
.set td.paper,.set td.other{color:var(--soft)}
.set td.ours{font-weight:600}
.set tr.is-main>td.paper,.set tr.is-main>td.other{font-weight:400}
.set tr.is-main>td.difference{font-weight:500}
.set td.difference{padding-left:2px}
.set td small,.set th small{font-size:12px;line-height:1.3;white-space:nowrap}
.set .grouped tr.of>th{padding-top:14px;font-weight:650;border-bottom-color:var(--soft)}
.set .grouped tbody:first-of-type tr.of>th{padding-top:6px}
.set tbody:not(:last-child) tr:last-child>*{border-bottom:1px solid var(--line)}
.set tr.begins>*{border-top:1.5px solid var(--soft)}
.set .grouped tbody th{white-space:normal}
.set .grouped thead th{text-wrap:balance}
.scroll{position:relative}
.set tbody tr.begins:first-child>*{border-top:0}
.times td:nth-child(2),.times td:nth-child(3),.times th:nth-child(2),.times th:nth-child(3){
text-align:left}
.times td:nth-child(3){white-space:normal}
.overview+.note{margin-top:10px}
.reading.said{margin-top:10px;font-size:14px}
.source{margin:10px 0 0;max-width:none;color:var(--soft);font-size:12.5px;overflow-wrap:anywhere}
.verdict{display:inline-flex;gap:5px;padding:1px 7px;border-radius:5px;white-space:nowrap}
.verdict .sign{min-width:1.05em;text-align:center}
.chip{display:inline-block;min-width:21px;padding:0 3px;margin:1px 3px 1px 0;border-radius:5px;
text-align:center;font-size:13px;line-height:20px}
.agree,.spread{color:var(--agree);background:var(--agree-tint)}
.near{color:var(--near);background:var(--near-tint)}
.differ{color:var(--differ);background:var(--differ-tint)}
.unseen{position:absolute;width:1px;height:1px;margin:-1px;overflow:hidden;clip-path:inset(50%);
white-space:nowrap}
.soft{color:var(--soft);font-size:13.5px;font-weight:400}
.legend.marks .chip{margin-right:7px}
.overview{margin-top:12px}
.gone{margin-top:10px;max-width:none}
.overview th,.overview td{text-align:left;padding:7px 10px}
.overview td.marks{white-space:normal;min-width:96px}
.overview thead .group{text-align:left}
.ran{margin:0;padding:0;list-style:none}
.ran li{padding:10px 0;border-bottom:1px solid var(--line);overflow-wrap:anywhere}
.ran li:first-child{padding-top:0}
.ran li:last-child{border-bottom:0;padding-bottom:0}
.ran p{margin:0 0 4px;max-width:none}
.ran .note{margin:2px 0 0;max-width:none}
.reading{margin:0;padding-left:1.15em;max-width:80ch}
.reading li{margin:0 0 5px}
.words{border-left:3px solid var(--line);padding-left:16px;margin-top:14px}
.words p{margin:0 0 8px}
.words p:last-child{margin-bottom:0}
.columns{display:grid;grid-template-columns:minmax(0,1fr) minmax(0,1fr);gap:16px;align-items:start}
.columns h2{margin-top:28px}
.columns .card{font-size:15px}
.whole{white-space:nowrap}
.pair figure{display:flex;flex-direction:column}
.pair .picture{margin-top:auto}
.picture .band{fill-opacity:.15}
.picture .paper{fill:var(--card);stroke-width:1.6}
@media screen and (max-width:1080px){
.columns{grid-template-columns:minmax(0,1fr);gap:0}
}
@media screen and (min-width:761px) and (max-width:1080px){
.picture.wide{display:none}
.picture.narrow{display:block}
}
@media (max-width:480px){
.set table{font-size:13px;letter-spacing:-.01em}
.set th,.set td{padding:6px 4px}
.set td.difference{padding-left:0}
.verdict{padding:1px 3px;gap:2px}
.overview th,.overview td{padding:6px}
.overview tbody th{white-space:normal;max-width:92px;font-size:14px}
.overview td.marks{min-width:66px}
.overview .chip{min-width:18px;margin-right:1px;padding:0 1px}
.words{padding-left:12px}
}
@media print{
main,header,footer{max-width:none}
body{font-size:10pt}
h3.sub{margin-top:14px;font-size:12pt;break-after:avoid}
p,.plot,.words,.overview,.legend{break-inside:avoid}
h1{font-size:20pt}
.story{font-size:11pt}
.legend{font-size:8pt;gap:2px 12px}
.legend svg{margin-right:4px}
figcaption,.note{font-size:8.5pt}
h4{font-size:10pt}
.pair{margin-top:6px}
.chip{min-width:15px;margin-right:2px;padding:0 1px;font-size:8pt;line-height:15px}
.columns{grid-template-columns:2fr 3fr;gap:12px}
.columns h2{margin-top:14px;font-size:13pt}
.columns .card{font-size:8.5pt;line-height:1.4;padding:10px 12px}
.reading li{margin-bottom:2px}
.paged{break-before:page}
.overview td,.overview th{padding:3px 8px}
.sets{display:block}
.set{margin-top:8px}
.set h3{break-after:avoid}
.set table,.set thead th{font-size:8.5pt}
.set td small,.set th small{display:inline;margin-left:4px;font-size:7.5pt}
.set th,.set td{padding:2.5px 6px}
.set tr>:first-child,.overview tr>:first-child{position:static}
.set .soft{font-size:8pt}
.set .grouped tr.of>th{padding-top:7px}
.reading.said{font-size:8.5pt;max-width:none}
.source{font-size:7.5pt;margin-top:5px}
.plot .picture{width:86%;margin-left:auto;margin-right:auto}
a{color:inherit;text-decoration:none}
}
"""


def reproduction_sheet() -> str:
    """The rules and colours that come after the common style sheet."""
    return (
        f":root{{{_variables(LIGHT)}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}" + SHEET
    )
