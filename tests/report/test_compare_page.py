"""A comparison's page and a run's page in a browser: nothing runs, all can be read and reached."""

import base64
import io
import json
import re
from importlib import util
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import sla
from sla.compare.comparison import Comparison, Entry
from sla.datasets.load import load
from sla.images.store import Dataset
from sla.report import html
from sla.report.compare import compare_page
from sla.report.run import run_page
from sla.tasks.classifier.evaluation import Outputs

spec = util.spec_from_file_location("pages", Path(__file__).with_name("test_pages.py"))
pages = util.module_from_spec(spec)
spec.loader.exec_module(pages)
Tags, browse, requests_of_page = pages.Tags, pages.browse, pages.requests_of_page

HOSTILE = "<script>alert(1)</script>"
SETTINGS = {
    "model__backbone": "convnet4",
    "model__options": {"width": 8},
    "run__iterations": 4,
    "run__batch_size": 32,
    "run__compile": False,
    "data__workers": 0,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return sla.fit("digits", tmp_path_factory.mktemp("runs") / f"<b>{'x' * 60}", **SETTINGS)


def answers(run, num_classes, count=300):
    """Made-up logits of three kinds, and digits under names like a script."""
    draws = np.random.default_rng(0)
    targets = draws.integers(0, num_classes, count)
    names = (HOSTILE, *(f"{number:03d} {'long name ' * 3}" for number in range(1, num_classes)))
    dataset = Dataset(load("digits").test.images, targets, names, draws.integers(0, 360, count))
    logits = {
        inference: torch.from_numpy(
            draws.normal(size=(count, num_classes)) + 3 * np.eye(num_classes)[targets]
        )
        for inference in run.model.method.inferences
    }
    return dataset, logits


@pytest.fixture(scope="module")
def found(run):
    dataset, logits = answers(run, 12)
    entries = []
    for inference, values in logits.items():
        confidence, given = values.softmax(1).max(1)
        entries.append(Entry(run, inference, given, confidence))
    return Comparison(dataset, "test images", entries, ["A note with <b>tags</b>."])


def test_the_page_says_what_decides(found):
    words = " ".join(Tags(compare_page(found)).text.split())
    assert "McNemar's exact p, adjusted for the number of tests (Holm), decides, below 0.05" in words


def test_flipped_images_are_shown_with_both_answers(found):
    text = compare_page(found)
    gained, lost = found.flipped(1)
    figures = re.findall(r"<figure>.*?</figure>", text)
    most = 6  # of each kind, for two pairs
    assert len(figures) == sum(min(len(images), most) for place in (1, 2) for images in found.flipped(place))
    place, classes = gained[0], found.dataset.classes
    words = Tags(figures[0]).text
    assert f"is {classes[found.dataset.targets[place]].strip()}" in " ".join(words.split())
    for entry, who in zip(found.entries, ("first", "this"), strict=False):
        said = f"{who}: {classes[int(entry.given[place])]}, {100 * float(entry.confidence[place]):.1f}%"
        assert said in words
    data = base64.b64decode(re.search(r"base64,([^\"]+)", figures[0])[1])
    shown = np.asarray(Image.open(io.BytesIO(data)))
    assert np.array_equal(shown, found.dataset.read([place]).images[0, 0].numpy())
    for image in (*gained, *lost):
        assert found.dataset.name(image) in text


def test_cells_stand_under_their_headings(found):
    table = re.search(
        r'aria-label="Differences on the same images"><table.*?</table>', compare_page(found), re.S
    )[0]
    head, *rows = (
        [re.sub("<.*?>", "", cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.S)]
        for row in re.findall(r"<tr>.*?</tr>", table, re.S)
    )
    for row, one in zip(rows, found.differences, strict=True):
        cells = dict(zip(head, row, strict=True))
        assert (cells["gained"], cells["lost"]) == (str(one.gained), str(one.lost))
        assert (cells["both right"], cells["both wrong"]) == (str(one.both_right), str(one.both_wrong))
        assert cells["points"] == f"{100 * (one.gained - one.lost) / 300:+.2f}"
        assert (cells["p"], cells["p for 2 tests"]) == (f"{one.p:.3f}", f"{one.adjusted:.3f}")
        assert cells["so it is"] == "no clear difference"


def test_text_of_a_comparison_is_text_and_every_part_speaks(found):
    text = compare_page(found)
    tags = Tags(text)
    assert tags.named("script") == []
    assert HOSTILE in tags.text
    assert "A note with <b>tags</b>." in tags.text
    assert tags.named("b") != []
    assert all(th.get("scope") for th in tags.named("th"))
    assert all(img["alt"] for img in tags.named("img"))
    assert all(svg.get("aria-label") or svg.get("aria-hidden") for svg in tags.named("svg"))
    assert "do not cover the spread from one training to the next" in tags.text


# What a reader with a keyboard needs, asked of the browser itself: each thing that scrolls can be focused
# and has a name, each summary opens; and how much darker or lighter text is than what is behind it.
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


def probe(text: str, folder: Path, scheme: int) -> list[dict]:
    """What a browser finds in a page at a phone's and a desk's width; dark (0) or light (1)."""
    outer, inner = folder / "outer.html", text.replace("&", "&amp;").replace('"', "&quot;")
    frames = "".join(
        f'<iframe width="{width}" height="800" frameborder="0" srcdoc="{inner}"></iframe>'
        for width in (360, 1440)
    )
    outer.write_text(f"<!doctype html><title></title>{frames}{PROBE}", encoding="utf-8")
    shown = browse(outer, folder, "--dump-dom", f"--blink-settings=preferredColorScheme={scheme}").stdout
    title = re.search(r"<title>(.*?)</title>", shown, re.S)[1]
    return json.loads(title.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


@pytest.fixture(scope="module", params=["comparison", "run, 12 classes", "run, 200 classes"])
def page(request, run, found):
    if request.param == "comparison":
        return compare_page(found)
    dataset, logits = answers(run, 12 if "12" in request.param else 200, 2000)
    return run_page(run, dataset, Outputs(logits, torch.as_tensor(dataset.targets)), "test images")


@pages.needs_chromium
@pytest.mark.parametrize("scheme", [0, 1], ids=["dark", "light"])
def test_pages_can_be_read_and_reached_at_every_width(page, scheme, tmp_path):
    for one in probe(page, tmp_path, scheme):
        assert one["wide"] <= one["width"], "the page scrolls sideways"
        assert one["bad"] == []
        assert one["least"] >= 4.5  # WCAG's contrast of text
        assert one["lang"] == "en"
        levels = one["levels"]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(b <= a + 1 for a, b in pairwise(levels))
        assert one["width"] > 400 or one["hidden"] > 0  # at a phone's width tables do scroll


@pages.needs_chromium
def test_nothing_of_a_page_runs_or_asks(page, tmp_path):
    file, log = tmp_path / "page.html", tmp_path / "net.json"
    html.write(file, page)
    options = ("--dump-dom", "--enable-logging=stderr", "--v=0", f"--log-net-log={log}")
    result = browse(file, tmp_path, *options)
    assert result.returncode == 0, result.stderr
    assert "CONSOLE" not in result.stderr
    shown = Tags(result.stdout)
    assert shown.named("script") == []
    assert HOSTILE in shown.text
    assert requests_of_page(log) == []
