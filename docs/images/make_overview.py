"""Draws overview.svg, the picture in the README: `python docs/images/make_overview.py`.

The digits and their views are the package's own, so the picture shows what training really sees.
"""

from html import escape
from pathlib import Path

import torch
from torch import Tensor

from sla.datasets.load import load
from sla.labels import join_labels
from sla.views import Rotation

OUT = Path(__file__).with_name("overview.svg")
ROWS = (13, 75)  # of the training digits: a 6 and a 9 that are hard to tell apart when one is turned
TWINS = (26, 36)  # the joint labels of the two that look alike
WIDTH, HEIGHT = 960, 404
TILE, STEP = 80, 120  # the edge of a picture, and from one to the next
BOX = 94
INK, SOFT, LINE, MARK = "#1a1d21", "#5b6570", "#c9d1d9", "#0b57b8"
STYLE = f"""
text {{ font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: {INK};
  font-size: 15px; text-anchor: middle; }}
.left {{ text-anchor: start; }} .head {{ font-weight: 600; font-size: 16px; }} .soft {{ fill: {SOFT}; }}
.mark {{ fill: {MARK}; font-weight: 600; }} .large {{ font-size: 40px; font-weight: 600; }}
.box {{ fill: #f5f7f9; stroke: {LINE}; }} .twin {{ fill: none; stroke: {MARK}; stroke-width: 3; }}
.wire {{ fill: none; stroke: {SOFT}; stroke-width: 1.5; marker-end: url(#tip); }}
"""


def main() -> None:
    """Write the picture beside this script."""
    OUT.write_text(draw(), encoding="utf-8")


def draw() -> str:
    """The whole picture as SVG."""
    digits, views = load("digits").train, Rotation()
    targets = [int(target) for target in digits.targets[list(ROWS)]]
    turned = views.stack(digits.read(ROWS).images)
    joint = join_labels(torch.tensor(targets), len(views)).unflatten(0, turned.shape[:2])
    parts = [
        text(38, 42, "Training: which digit, in which rotation?", "left head"),
        text(38, 63, "10 classes x 4 views = 40 joint labels", "left soft"),
    ]
    for row, (target, top) in enumerate(zip(targets, (84, 222), strict=True)):
        for view, name in enumerate(views.names):
            left = 46 + STEP * view
            number = int(joint[row, view])
            parts.append(pixels(turned[row, view, 0], left, top))
            if number in TWINS:
                parts.append(rectangle(left - 3, top - 3, TILE + 6, TILE + 6, "twin"))
            parts.append(text(left + TILE / 2, top + TILE + 21, f"{target} at {name}", "soft"))
            kind = "mark" if number in TWINS else ""
            parts.append(text(left + TILE / 2, top + TILE + 40, f"label {number}", kind))
    words = "A turned 6 looks like a 9: it keeps a label of its own, and need not be called 6."
    parts.append(text(38, 382, words, "left"))
    return frame([*parts, *answers(turned[0, :, 0])])


def answers(views: Tensor) -> list[str]:
    """The right half: the two ways to an answer, from views (M, H, W) of one image."""
    column = 544
    parts = [
        text(column, 42, "Test: which digit?", "left head"),
        text(column, 63, "the rotation is known, it need not be guessed", "left soft"),
    ]
    for top, title, seen, first, second in (
        (84, "aggregated", views, "all four views go forward,", "their answers are averaged"),
        (222, "distilled", views[:1], "the image alone goes forward;", "a student has learnt the average"),
    ):
        parts += [
            rectangle(column, top, 292, BOX, "box"),
            text(column + 14, top + 28, title, "left mark"),
            text(column + 14, top + 59, first, "left"),
            text(column + 14, top + 80, second, "left"),
            f'<path class="wire" d="M{column + 300} {top + BOX / 2:g}h26"/>',
            text(column + 356, top + BOX / 2 + 14, "6", "large"),
        ]
        for place, image in enumerate(seen):
            parts.append(pixels(image, column + 292 - 36 * (len(seen) - place), top + 9, 28))
    parts.append(text(column + 14, 84 + BOX + 21, "four forward passes", "left soft"))
    parts.append(text(column + 14, 222 + BOX + 21, "one forward pass, as a plain classifier", "left soft"))
    return parts


def frame(parts: list[str]) -> str:
    """A light panel, so that the picture reads on a dark page too."""
    title = "A 6 turned by 180 degrees looks like a 9, but has a joint label of its own"
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" aria-label="{escape(title)}">\n<style>{STYLE}</style>\n'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{SOFT}"/></marker></defs>\n'
        f'<rect x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="10" fill="#ffffff" '
        f'stroke="{LINE}"/>\n{body}\n</svg>\n'
    )


def pixels(image: Tensor, left: float, top: float, edge: float = TILE) -> str:
    """An 8x8 image, white on black as the network sees it: one path for all pixels of a grey."""
    places: dict[int, str] = {}
    for y, line in enumerate(image.tolist()):
        for x, grey in enumerate(line):
            if grey:
                places[grey] = places.get(grey, "") + f"M{x} {y}h1v1h-1z"
    paths = "".join(f'<path fill="#{grey:02x}{grey:02x}{grey:02x}" d="{d}"/>' for grey, d in places.items())
    place = f"translate({left:g} {top:g}) scale({edge / image.shape[-1]:g})"
    return f'<g transform="{place}" shape-rendering="crispEdges"><path d="M0 0h8v8h-8z"/>{paths}</g>'


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Words at a place; text stays text."""
    attribute = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{attribute}>{escape(words)}</text>'


def rectangle(x: float, y: float, width: float, height: float, kind: str) -> str:
    """A rectangle with round corners."""
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>'


if __name__ == "__main__":
    main()
