"""The frame of a page and its tables. Whatever a caller passes as text is shown as text."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from sla.disk import replacing

STYLE = """
:root { color-scheme: light dark; --ink: #1a1d21; --soft: #5b6570; --paper: #ffffff; --line: #d9dee3;
  --panel: #f5f7f9; --mark: #1f6feb; --good: #1a7f37; --bad: #c0392b; --more: rgb(0 0 0 / .22); }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #9aa5b1; --paper: #14171a;
  --line: #333a41; --panel: #1d2125; --mark: #6cb0ff; --good: #4ac26b; --bad: #ff7b72;
  --more: rgb(255 255 255 / .25); } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 58rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p { margin: .5rem 0; max-width: 46rem; }
p, h1, h2, h3, summary, li { overflow-wrap: anywhere; }
.lead { font-size: 1.05rem; }
.soft { color: var(--soft); }
code { font: .9em ui-monospace, monospace; background: var(--panel); padding: .1em .3em; border-radius: 4px;
  overflow-wrap: anywhere; }
/* A shade at an edge beyond which there is more: what scrolls along (local) covers it where there is none. */
.scroll { overflow-x: auto; background:
  linear-gradient(to right, var(--paper) 50%, transparent) 0 0 / 2rem 100% no-repeat local,
  linear-gradient(to left, var(--paper) 50%, transparent) 100% 0 / 2rem 100% no-repeat local,
  linear-gradient(to right, var(--more), transparent) 0 0 / .9rem 100% no-repeat scroll,
  linear-gradient(to left, var(--more), transparent) 100% 0 / .9rem 100% no-repeat scroll; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
thead th { color: var(--soft); }
th { font-weight: 600; }
tbody th { font-weight: 400; }
.good { color: var(--good); } .bad { color: var(--bad); }
.strip { display: grid; grid-template-columns: 16rem 1fr; align-items: center; gap: 0 1rem; }
.strip svg { display: block; width: 100%; height: 2.1rem; overflow: visible; }
.strip .name { padding: .2rem 0; overflow-wrap: anywhere; min-width: 0; }
.grid-line { stroke: var(--line); } .reference { stroke: var(--soft); stroke-dasharray: 4 3; }
.seed { fill: var(--mark); opacity: .28; } .range { stroke: var(--mark); stroke-width: 3; }
.mean { fill: var(--mark); stroke: var(--paper); stroke-width: 1.5; }
.tick { fill: var(--soft); font-size: .8rem; text-anchor: middle; }
.sheet { border-collapse: separate; border-spacing: .3rem; width: auto; }
.sheet td, .sheet th { border: 0; padding: .1rem; text-align: center; }
.sheet img { display: block; margin: 0 auto; width: clamp(3rem, 16vw, 6rem); border-radius: 4px; }
.sheet .caption { font-size: .8rem; color: var(--soft); }
.sheet .over { text-align: left; padding-top: .6rem; overflow-wrap: anywhere; }
.pixels { image-rendering: pixelated; }
.tall { max-height: 30rem; overflow: auto; }
.tall thead th { position: sticky; top: 0; background: var(--paper); }
:focus-visible { outline: 2px solid var(--mark); outline-offset: 2px; }
summary { cursor: pointer; padding: .3rem 0; }
pre { font: .85rem/1.45 ui-monospace, monospace; background: var(--panel); padding: .8rem; border-radius: 6px;
  overflow: auto; max-height: 30rem; }
tbody th { overflow-wrap: anywhere; min-width: 7.5rem; }
td { white-space: nowrap; }
.sheet td { white-space: normal; } .sheet th { min-width: 0; }
.words td:nth-child(2), .words th:nth-child(2) { text-align: left; white-space: normal;
  overflow-wrap: anywhere; min-width: 7.5rem; }
.names tbody th { min-width: 10rem; }
.settings td, .settings thead th { white-space: normal; overflow-wrap: anywhere; min-width: 6rem; }
.bar { background: linear-gradient(to right, color-mix(in srgb, var(--mark) 26%, transparent)
  calc(var(--share) * 100%), transparent 0); }
.plot { display: grid; grid-template-columns: auto 1fr; gap: .3rem .5rem; margin: .8rem 0 1.4rem; }
.plot svg { display: block; width: 100%; height: 100%; overflow: visible; }
.plot .area { position: relative; height: 15rem; }
.plot.square .area { height: auto; aspect-ratio: 1; }
.plot .ticks { position: relative; color: var(--soft); font-size: .8rem; line-height: 1; }
.plot .up { min-width: 2.6rem; } .plot .along { grid-column: 2; height: 1rem; }
.plot .ticks span { position: absolute; white-space: nowrap; }
.plot .up span { right: 0; transform: translateY(50%); }
.plot .along span { transform: translateX(-50%); }
.plot .along .end { transform: translateX(-85%); }
.plot .axis { grid-column: 2; color: var(--soft); font-size: .8rem; text-align: center; }
.plot line, .plot path { vector-effect: non-scaling-stroke; fill: none; }
.line { stroke: var(--series); stroke-width: 2; stroke-linejoin: round; }
.point { stroke: var(--series); stroke-width: 7; stroke-linecap: round; }
.s0 { --series: var(--mark); } .s1 { --series: #d9822b; } .s2 { --series: var(--good); }
.s3 { --series: #a463d6; } .s4 { --series: var(--soft); } .s5 { --series: var(--bad); }
.s1 .line { stroke-dasharray: 7 3; } .s2 .line { stroke-dasharray: 2 3; }
.s3 .line { stroke-dasharray: 9 3 2 3; } .s4 .line { stroke-dasharray: 4 4; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: 0; padding: 0; list-style: none; }
.legend svg { width: 2rem; height: .7rem; margin-right: .4rem; }
.legend path { fill: none; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 18rem), 1fr)); gap: 0 2rem; }
.pair > * { min-width: 0; } .pair h3 { margin: .4rem 0 0; } h3 { font-size: 1rem; }
.reached { fill: var(--mark); opacity: .75; } .gap { fill: var(--bad); opacity: .38; }
.matrix { width: auto; font-size: .85rem; } .matrix th, .matrix td { padding: .2rem .4rem; }
.matrix td { min-width: 2rem; text-align: center; border: 1px solid var(--line); }
.matrix thead th:not(:first-child) { text-align: center; }
.matrix tbody th { min-width: 0; white-space: nowrap; position: sticky; left: 0; background: var(--paper);
  max-width: min(15rem, 34vw); overflow: hidden; text-overflow: ellipsis; }
.matrix tbody th span { display: inline-block; min-width: 1.3rem; color: var(--soft); }
.cell { background: color-mix(in srgb, var(--shade) calc(var(--share) * 45% + 8%), transparent); }
.cell.right { --shade: var(--good); text-align: center; } .cell.wrong { --shade: var(--bad); }
.heat { max-width: 37.5rem; border: 1px solid var(--line); }
.heat img { display: block; width: 100%; image-rendering: pixelated; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: 1rem; padding: 0;
  list-style: none; }
.cards figure { margin: 0; font-size: .85rem; overflow-wrap: anywhere; }
.cards img { display: block; width: 100%; height: 9.5rem; object-fit: contain; background: var(--panel);
  border-radius: 6px; margin-bottom: .3rem; }
@media (max-width: 40rem) { .strip { grid-template-columns: 1fr; } .strip .name { padding-top: .6rem; } }
"""


def page(title: str, *sections: str) -> str:
    """A whole page from finished sections; nothing in it asks the network for anything."""
    body = "\n".join(sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n'
        f"</head>\n<body>\n<main>\n<h1>{escape(title)}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """A heading and what stands below it."""
    return f"<section>\n<h2>{escape(title)}</h2>\n" + "\n".join(parts) + "\n</section>"


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text."""
    attribute = f' class="{escape(kind)}"' if kind else ""
    return f"<p{attribute}>{escape(text)}</p>"


def code(text: str) -> str:
    """A command, as it was typed."""
    return f"<p><code>{escape(text)}</code></p>"


def pre(text: str, name: str) -> str:
    """A text of many lines as it is, in a frame that can be scrolled."""
    return f'<pre tabindex="0" role="region" aria-label="{escape(name)}">{escape(text)}</pre>'


def details(summary: str, *parts: str, opened: bool = False) -> str:
    """What is shown when its summary is chosen."""
    attribute = " open" if opened else ""
    return f"<details{attribute}><summary>{escape(summary)}</summary>\n" + "\n".join(parts) + "\n</details>"


class Shaded(NamedTuple):
    """A cell whose background follows a share in [0, 1], in the way its kind is styled."""

    text: str
    share: float
    kind: str = "bar"


def table(
    header: Sequence[str], rows: Iterable[Sequence[str | Shaded]], caption: str, kind: str = "scroll"
) -> str:
    """A table of texts; the first cell of each row is its heading."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    lines = []
    for first, *others in rows:
        name = first.text if isinstance(first, Shaded) else first
        lines.append(f'<tr><th scope="row">{escape(name)}</th>{"".join(map(cell, others))}</tr>')
    return (
        f'<div class="{escape(kind)}" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def cell(content: str | Shaded) -> str:
    """One cell of a table."""
    if isinstance(content, str):
        return f"<td>{escape(content)}</td>"
    style = f"--share:{content.share:.3f}"
    return f'<td class="{escape(content.kind)}" style="{style}">{escape(content.text)}</td>'


def write(path: Path, text: str) -> None:
    """Write a page whole or not at all."""
    with replacing(path) as file:
        file.write(text.encode())
