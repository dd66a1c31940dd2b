"""The frame of a page and its tables. Whatever a caller passes as text is shown as text."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from sla.disk import replacing

STYLE = """
:root { color-scheme: light dark; --ink: #1a1d21; --soft: #5b6570; --paper: #ffffff; --line: #d9dee3;
  --panel: #f5f7f9; --mark: #1f6feb; --good: #1a7f37; --bad: #c0392b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #9aa5b1; --paper: #14171a;
  --line: #333a41; --panel: #1d2125; --mark: #6cb0ff; --good: #4ac26b; --bad: #ff7b72; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 58rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p { margin: .5rem 0; max-width: 46rem; }
.lead { font-size: 1.05rem; }
.soft { color: var(--soft); }
code { font: .9em ui-monospace, monospace; background: var(--panel); padding: .1em .3em; border-radius: 4px;
  overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
thead th { color: var(--soft); }
th { font-weight: 600; }
tbody th { font-weight: 400; }
.good { color: var(--good); } .bad { color: var(--bad); }
.strip { display: grid; grid-template-columns: 16rem 1fr; align-items: center; gap: 0 1rem; }
.strip svg { display: block; width: 100%; height: 2.1rem; overflow: visible; }
.strip .name { padding: .2rem 0; }
.grid-line { stroke: var(--line); } .reference { stroke: var(--soft); stroke-dasharray: 4 3; }
.seed { fill: var(--mark); opacity: .28; } .range { stroke: var(--mark); stroke-width: 3; }
.mean { fill: var(--mark); stroke: var(--paper); stroke-width: 1.5; }
.tick { fill: var(--soft); font-size: .8rem; text-anchor: middle; }
.sheet { border-collapse: separate; border-spacing: .3rem; width: auto; }
.sheet td, .sheet th { border: 0; padding: .1rem; text-align: center; }
.sheet img { display: block; margin: 0 auto; width: clamp(3rem, 16vw, 6rem); image-rendering: pixelated;
  border-radius: 4px; }
.sheet .caption { font-size: .8rem; color: var(--soft); }
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


def table(header: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> str:
    """A table of texts; the first cell of each row is its heading."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    lines = []
    for first, *others in rows:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in others)
        lines.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def write(path: Path, text: str) -> None:
    """Write a page whole or not at all."""
    with replacing(path) as file:
        file.write(text.encode())
