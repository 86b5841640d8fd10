"""The page's look: two palettes and one style sheet, for screens light and dark and for paper.

Every colour that carries text keeps a contrast of at least 4.5 to both backgrounds of its palette.
The training line, the main method, retraining and the first other method stay apart for the three
kinds of colour blindness; shapes and labels tell lines apart as well.
"""

from __future__ import annotations

LIGHT = {
    "page": "#f6f7f9",
    "card": "#ffffff",
    "ink": "#1b2028",
    "soft": "#566070",
    "line": "#dde1e8",
    "node": "#8a94a6",
    "main": "#235cf0",
    "oracle": "#17683b",
    "other-1": "#b5520a",
    "other-2": "#65187e",
    "other-3": "#d6057a",
    "other-4": "#0410a1",
    "other-5": "#566070",
    "unlearner": "#a8246f",
    "right": "#08705a",
    "wrong": "#a83208",
}
DARK = {
    "page": "#101318",
    "card": "#181c23",
    "ink": "#e8ebf0",
    "soft": "#a3adbc",
    "line": "#2f3641",
    "node": "#6f7a8c",
    "main": "#5f93e0",
    "oracle": "#6cf5a6",
    "other-1": "#ea6d25",
    "other-2": "#e28197",
    "other-3": "#9ef110",
    "other-4": "#f2b8fe",
    "other-5": "#e1af5d",
    "unlearner": "#f47fbf",
    "right": "#4fc9a8",
    "wrong": "#ff9d70",
}
TEXT_COLOURS = tuple(name for name in LIGHT if name not in ("page", "card", "line", "node"))


def _variables(palette: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in palette.items())


SHEET = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;color-scheme:light dark}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.55 system-ui,-apple-system,
"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;font-variant-numeric:tabular-nums}
main,header,footer{max-width:1120px;margin:0 auto;padding:0 20px}
header{padding-top:36px}
.brand{margin:0 0 6px;font-size:14px;font-weight:600;letter-spacing:.04em;color:var(--soft)}
h1{margin:0 0 12px;font-size:clamp(26px,4.6vw,40px);line-height:1.15;letter-spacing:-.015em;
text-wrap:balance}
.story{max-width:72ch;margin:0 0 24px;font-size:clamp(16px,1.7vw,18px)}
h2{margin:40px 0 6px;font-size:22px;line-height:1.25;letter-spacing:-.01em}
h3{margin:0 0 2px;font-size:16px;color:var(--ink)}
p{margin:0 0 12px;max-width:76ch}
.note,figcaption{color:var(--soft);font-size:14px}
figcaption p{margin:0 0 6px}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px 18px}
.tiles{display:grid;grid-auto-flow:column;grid-auto-columns:minmax(0,1fr);gap:12px;margin:0;
padding:0}
.tiles div{background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:12px 16px 13px}
.tiles dt{color:var(--soft);font-size:14px}
.tiles dd{margin:0}
.tiles .value{font-size:clamp(20px,2.35vw,27px);font-weight:650;line-height:1.25;
letter-spacing:-.01em}
.tiles .beside{color:var(--soft);font-size:13px;line-height:1.4}
.pair{display:grid;grid-template-columns:minmax(0,1fr) minmax(0,1fr);gap:16px;margin-top:12px}
.pair.single{grid-template-columns:minmax(0,600px)}
figure{margin:0;break-inside:avoid}
.picture{display:block;width:100%;height:auto;font-size:13px;font-family:inherit}
.picture.narrow{display:none}
.picture .peer-name{fill:var(--ink)}
.picture .tick{fill:var(--soft);font-size:12px}
.picture .grid{stroke:var(--line);stroke-width:1}
.picture .axis{stroke:var(--soft);stroke-width:1}
.picture .start{stroke:var(--soft);stroke-width:1.2;stroke-dasharray:2 3}
.picture .start-label{fill:var(--soft);font-size:12.5px}
.picture .leader{stroke-width:1;opacity:.75}
.picture .end{stroke:var(--card);stroke-width:1.2}
.picture .base{stroke:var(--line)}
.picture .walked{stroke:var(--soft)}
.picture .walked.to{stroke:var(--unlearner)}
.picture .peer,.picture .bar{fill:var(--node)}
.picture .peer{stroke:var(--card);stroke-width:1.5}
.picture .peer.unlearner,.picture .bar.unlearner,.picture .cell.unlearner{fill:var(--unlearner)}
.picture .cell{fill:var(--node)}
.picture .peer-name{paint-order:stroke;stroke:var(--card);stroke-width:3px;
stroke-linejoin:round}
.picture .peer-name.unlearner{fill:var(--unlearner);font-weight:650}
.strip{margin-top:10px}
.legend{display:flex;flex-wrap:wrap;gap:4px 20px;margin:8px 0 0;padding:0;list-style:none;
font-size:14px}
.legend svg{width:26px;height:12px;margin-right:7px;vertical-align:-1px}
details{margin-top:8px;font-size:14px}
summary{cursor:pointer;color:var(--soft)}
.scroll{overflow-x:auto;max-width:100%;background:
linear-gradient(to left,var(--card) 40%,transparent) right/36px 100% no-repeat local,
linear-gradient(to left,var(--line),transparent) right/14px 100% no-repeat scroll}
.scroll:focus-visible{outline:2px solid var(--main);outline-offset:2px}
details .scroll{max-height:320px;overflow-y:auto}
table{border-collapse:collapse;width:100%;font-size:15px;line-height:1.35}
caption{text-align:left;color:var(--soft);font-size:14px;padding:0 0 8px}
th,td{padding:8px 10px;border-bottom:1px solid var(--line);text-align:right;
vertical-align:baseline}
thead th{vertical-align:bottom}
thead th{font-size:13.5px;font-weight:600}
thead .unit{display:block;font-weight:400;color:var(--soft)}
thead .group{text-align:center;color:var(--soft);font-weight:400}
thead .group+.group,thead td[colspan]+.group{border-left:1px solid var(--line)}
.from{border-left:1px solid var(--line)}
tr>:first-child{text-align:left;position:sticky;left:0;background:var(--card)}
tbody th,td{white-space:nowrap}
tbody th{font-weight:500}
tbody tr:last-child>*{border-bottom:0}
tr.is-main>*{font-weight:680}
th small,td small{display:block;font-weight:400;color:var(--soft);font-size:12.5px}
.samples{width:auto}
.samples th,.samples td{text-align:center;vertical-align:middle;padding:7px 10px;
min-width:clamp(76px,8.6vw,100px)}
.samples th{text-align:left}
.samples img{display:block;margin:0 auto;image-rendering:pixelated;border:1px solid var(--line);
border-radius:3px}
.samples .sign{margin-right:5px}
.samples .right .sign,.samples .right b{color:var(--right)}
.samples .wrong .sign,.samples .wrong b{color:var(--wrong)}
.claim{display:grid;grid-template-columns:auto 1fr;gap:4px 18px;align-items:start;
break-inside:avoid}
.claim+.claim{margin-top:12px}
.claim p{margin:0 0 4px}
.verdict{display:grid;grid-template-columns:auto 1fr;gap:6px 18px;align-items:start;
margin:0 0 22px;border-width:2px;break-inside:avoid}
.verdict p{margin:0 0 4px;max-width:84ch}
.verdict code{white-space:nowrap}
.verdict.certified,.verdict.exact{border-color:var(--right)}
.verdict.rehearsal{border-color:var(--soft);border-style:dashed}
.verdict.refused{border-color:var(--wrong)}
.verdict.nominal{border-color:var(--other-1)}
.badge{display:inline-block;border:2px solid;border-radius:999px;padding:2px 14px 3px;
font-weight:650;white-space:nowrap}
.badge.nominal{color:var(--other-1)}
.badge.certified,.badge.exact{color:var(--right)}
.badge.rehearsal{color:var(--soft);border-style:dashed}
.badge.refused{color:var(--wrong)}
.badge.nothing{color:var(--soft)}
pre{margin:0 0 12px;padding:12px 14px;overflow-x:auto;background:var(--page);
border:1px solid var(--line);border-radius:8px;font:14px/1.5 ui-monospace,SFMono-Regular,Menlo,
Consolas,monospace;white-space:pre-wrap;overflow-wrap:anywhere}
code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.93em}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(190px,1fr));gap:10px 20px;
margin:14px 0 0}
.facts dt{color:var(--soft);font-size:13px}
.facts dd{margin:0;overflow-wrap:anywhere}
footer{padding-top:28px;padding-bottom:40px;color:var(--soft);font-size:14px}
@media (max-width:760px){
.pair,.pair.single{grid-template-columns:minmax(0,1fr)}
.pair>figure{max-width:600px}
.card{padding:14px 12px}
main,header,footer{padding-left:14px;padding-right:14px}
.claim,.verdict{grid-template-columns:1fr}
th,td{padding:7px 8px}
.tiles{grid-auto-flow:row;grid-template-columns:1fr 1fr;gap:10px}
.tiles div:last-child:nth-child(odd){grid-column:1/-1}
.tiles div{padding:10px 12px}
.tiles .value{font-size:23px}
}
@media (max-width:480px){
.samples th{white-space:normal;min-width:92px}
.roomy{font-size:17px}
.strip .tick{font-size:14px}
}
@media (max-width:480px),(min-width:761px) and (max-width:900px),print{
.picture.wide{display:none}
.picture.narrow{display:block}
}
@media print{
@page{size:A4;margin:14mm}
html{color-scheme:light}
body{font-size:10.5pt;background:none;-webkit-print-color-adjust:exact;print-color-adjust:exact}
main,header,footer{max-width:none;padding:0}
h2,.note,.legend{break-after:avoid}
h2{margin-top:22px}
.card,.tiles div{border-radius:4px;break-inside:avoid}
.pair{grid-template-columns:minmax(0,1fr) minmax(0,1fr)}
.tiles{grid-auto-flow:column;grid-template-columns:none;gap:8px}
.tiles div:last-child:nth-child(odd){grid-column:auto}
.tiles div{padding:8px 10px}
.tiles .value{font-size:17pt}
details{display:none}
.scroll{overflow:visible;background:none}
table{font-size:8.5pt}
thead th{font-size:8pt}
th,td{padding:4px}
.samples th,.samples td{min-width:0}
.samples img{width:44px;height:44px}
}
"""


def style_sheet() -> str:
    """The whole style sheet, palettes included."""
    return (
        f":root{{{_variables(LIGHT)}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}" + SHEET
    )
