"""Pages in a browser: nothing runs, nothing is requested, everything can be read and reached."""

import json
import re
from html import escape, unescape
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from readability import MEASURE
from sla.report.page import render

PROBE = f"""
<script>
{MEASURE}
onload = () => {{
  const frames = [...document.querySelectorAll('iframe')];
  document.title = JSON.stringify(frames.map(f => measure(f.contentDocument, f.contentWindow)));
}};
</script>
"""


@pytest.mark.parametrize("scheme", [0, 1], ids=["dark", "light"])
def test_pages_can_be_read_and_reached_at_every_width(page, scheme, browse):
    frames = "".join(
        f'<iframe width="{width}" height="800" frameborder="0" srcdoc="{escape(page)}"></iframe>'
        for width in (360, 1440)
    )
    outer = f"<!doctype html><title></title>{frames}{PROBE}"
    done, _ = browse(outer, f"--blink-settings=preferredColorScheme={scheme}")
    for one in json.loads(unescape(re.search(r"<title>(.*?)</title>", done.stdout, re.S)[1])):
        assert one["wide"] <= one["width"], "the page scrolls sideways"
        assert one["bad"] == []
        assert one["least"] >= 4.5  # WCAG's contrast of text
        assert one["lang"] == "en"
        levels = one["levels"]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(b <= a + 1 for a, b in pairwise(levels))
        assert one["width"] > 400 or one["hidden"] > 0  # on a phone, tables do scroll


def test_nothing_runs_and_nothing_is_requested(page, browse, parse, hostile):
    done, requests = browse(page)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr
    shown = parse(done.stdout)
    assert shown.named("script") == []
    assert hostile in shown.text
    assert "owned" not in re.search(r"<title>(.*?)</title>", done.stdout, re.S)[1]
    assert requests == []


def test_a_request_would_be_noticed(browse):
    _, requests = browse('<!doctype html><title>x</title><img src="http://example.invalid/x.png">')
    assert requests == ["http://example.invalid/x.png"]


def test_page_is_light_or_dark_as_the_reader_prefers(browse, tmp_path):
    brightness = []
    for scheme in (0, 1):  # dark, light
        options = (f"--screenshot={tmp_path / 'shot.png'}", "--window-size=400,300")
        browse(
            render("page.html", title="A page"), *options, f"--blink-settings=preferredColorScheme={scheme}"
        )
        pixels = np.asarray(Image.open(tmp_path / "shot.png").convert("L"), dtype=float)
        brightness.append((pixels[-1, -1], pixels.max() - pixels.min()))
    (dark, dark_contrast), (light, light_contrast) = brightness
    assert dark < 60 < 200 < light
    assert min(dark_contrast, light_contrast) > 150
