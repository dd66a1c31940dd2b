"""What pages are made of: text is shown as text, charts stay in their frame, images keep their pixels."""

import re
from importlib.resources import files
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sla.report.charts import Series, Strip, line_chart, nice_ticks, strip_chart, thinned
from sla.report.page import render
from sla.report.pictures import picture
from sla.stats import Interval, interval

numbers = st.floats(-1e4, 1e4)


@pytest.fixture(params=["demo", "results"])
def hostile_page(request, hostile, parse):
    """Pages whose every text looks like markup; those of a run and a comparison are in test_browser."""
    if request.param == "demo":
        values = dict.fromkeys(("title", "summary", "command", "version", "per_class", "trained"), hostile)
        values["strips"] = [Strip(hostile, (70.0, 72.0), interval((70.0, 72.0)))]
        method = SimpleNamespace(label=hostile, passes=1, cost=4.0)
        values["rows"] = [(method, 71.0, 1.0, Interval(0.0, 0.0, 0.0))]
        values |= {"columns": [hostile], "results": SimpleNamespace(seeds=2, seconds=3.0)}
        image = torch.arange(64, dtype=torch.uint8).view(1, 8, 8)
        values["samples"] = [(hostile, [image], [hostile])]
        # title, heading, summary, strip, row, column, sample, caption, command, and three in sentences
        return parse(render("demo.html", **values)), 12
    lines, table = [Series(hostile, [(0.0, 1.0), (1.0, 2.0)])], (hostile, [hostile], [[hostile, hostile]])
    section = SimpleNamespace(title=hostile, words=[hostile], tables=[table, table], lines=lines)
    section.axis, section.notes, section.folded = (hostile, ""), [hostile], True
    # title, heading; heading, words, two tables of a heading and three cells, legend, axis, note
    return parse(render("results.html", title=hostile, sections=[section])), 15


def test_text_stays_text_and_nothing_is_requested(hostile_page, hostile):
    page, times = hostile_page
    assert page.named("script") == []
    assert page.text.count(hostile) == times
    for _, attributes in page.found:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "action", "poster", "srcset"):
            assert attributes.get(name, "data:").startswith("data:")
    assert all(image["alt"].endswith(hostile) for image in page.named("img"))
    assert hostile in next(svg["aria-label"] for svg in page.named("svg") if "aria-label" in svg)


def test_the_style_sheet_requests_nothing():
    style = files("sla.report").joinpath("style.css").read_text(encoding="utf-8")
    assert "max-width" in style
    assert not re.search(r"url\(|@import", style)


@pytest.mark.parametrize("channels", [1, 3])
def test_picture_keeps_its_pixels(channels, parse):
    image = torch.randint(0, 256, (channels, 5, 4), dtype=torch.uint8)
    pixels = parse(picture(image, "x")).pixels("x")
    assert np.array_equal(pixels.reshape(5, 4, channels), image.permute(1, 2, 0).numpy())


@given(numbers, numbers, st.integers(3, 10))
def test_ticks_are_round_even_few_and_enclose_the_range(a, b, most):
    low, high = min(a, b), max(a, b)
    ticks = nice_ticks(low, high, most)
    assert 2 <= len(ticks) <= most + 1
    assert ticks == sorted(set(ticks))
    step = ticks[1] - ticks[0]
    assert np.allclose(np.diff(ticks), step, rtol=1e-6, atol=2e-10)
    assert ticks[0] <= low + 1e-9
    assert ticks[-1] >= high - 1e-9
    assert ticks[-1] - ticks[0] <= (high - low) + 2 * step + 1e-9
    if high - low > 1e-3:
        assert f"{step:.6e}"[0] in "125"


@given(st.lists(st.lists(numbers, min_size=1, max_size=5), min_size=1, max_size=4))
def test_everything_drawn_is_inside_the_chart(rows):
    """Also intervals that are infinite (one value) or wider than the values."""
    chart = strip_chart([Strip("row", values, interval(values)) for values in rows])
    places = [float(x) for x in re.findall(r'\b(?:x1|x2|cx|x)="(-?[\d.]+|nan|inf)%"', chart)]
    assert len(places) >= 3 * len(rows)
    assert all(0 <= place <= 100 for place in places)
    assert chart.count('class="seed"') == sum(len(values) for values in rows)


def test_positions_are_proportional_to_the_values():
    chart = strip_chart([Strip("row", [60.0, 70.0, 90.0], Interval(70.0, 65.0, 75.0))])
    low, middle, high = (float(x) for x in re.findall(r'class="seed" cx="([\d.]+)%', chart))
    assert high - middle == pytest.approx(2 * (middle - low), abs=0.02)
    chart = line_chart([Series("a", [(0, 0.0), (5, 50.0), (10, 100.0)])], "step", "x")
    assert 'd="M0.00 100.00 L50.00 50.00 L100.00 0.00"' in chart


def test_many_points_are_averaged():
    thin = thinned([(float(i), float(i % 2)) for i in range(1000)], 100)
    assert len(thin) == 100
    assert thin[0] == (4.5, 0.5)
