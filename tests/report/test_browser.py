"""Pages in a browser: nothing runs, nothing is requested, everything can be read and reached."""

import json
import re
from html import escape, unescape
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from sla.report.page import render

# What a reader with a keyboard needs, asked of the browser itself: whatever scrolls can be focused and has a
# name, each summary opens; and the contrast of text with what is behind it.
PROBE = """
<script>
const luminance = c => { const [r, g, b] = c.map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b; };
const parse = text => { const n = (text.match(/-?[\\d.]+(e-?\\d+)?/g) || []).map(Number);
  const unit = text.startsWith('color(') ? 1 : 255;
  return [n[0] / unit, n[1] / unit, n[2] / unit, n.length > 3 ? n[3] : 1]; };
const over = (top, below) => [0, 1, 2].map(i => top[3] * top[i] + (1 - top[3]) * below[i]);
onload = () => {
  const found = [];
  for (const frame of document.querySelectorAll('iframe')) {
    const page = frame.contentDocument, view = frame.contentWindow, bad = [];
    const paper = parse(view.getComputedStyle(page.body).backgroundColor);
    let least = 21, hidden = 0;
    page.querySelectorAll('details').forEach(d => { d.open = false; d.querySelector('summary').click();
      if (!d.open) bad.push('a summary that does not open'); });
    for (const e of page.querySelectorAll('body *')) {
      const style = view.getComputedStyle(e);
      const scrolls = /auto|scroll/.test(style.overflowX + style.overflowY) &&
        (e.scrollWidth > e.clientWidth || e.scrollHeight > e.clientHeight);
      if (scrolls) { hidden++; e.focus();
        const reached = page.activeElement === e && e.getAttribute('aria-label');
        if (!reached) bad.push('unreachable ' + e.className); }
      const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
      if (!own || e.closest('svg')) continue;
      let layers = [];
      for (let x = e; x; x = x.parentElement) layers.push(parse(view.getComputedStyle(x).backgroundColor));
      const behind = layers.reverse().reduce((below, top) => over(top, below), paper.slice(0, 3));
      const [a, b] = [luminance(over(parse(style.color), behind)), luminance(behind)];
      least = Math.min(least, (Math.max(a, b) + .05) / (Math.min(a, b) + .05));
    }
    const root = page.documentElement;
    found.push({width: frame.clientWidth, wide: root.scrollWidth, hidden, bad, least, lang: root.lang,
      levels: [...page.querySelectorAll('h1,h2,h3')].map(h => +h.tagName[1])});
  }
  document.title = JSON.stringify(found);
};
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
