"""The pages: whatever is passed as text is shown as text, charts stay in their frame, browsers agree."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sla.report import html
from sla.report.charts import Strip, nice_ticks, strip_chart
from sla.report.pictures import picture, sheet
from sla.stats import Interval, interval

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\"'&"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
numbers = st.floats(-1e4, 1e4)


class Tags(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def named(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


def hostile_page() -> str:
    strips = [Strip(HOSTILE, values, interval(values)) for values in ([70.0, 72.0, 75.0], [80.0, 81.0, 85.0])]
    image = torch.arange(64, dtype=torch.uint8).view(1, 8, 8)
    return html.page(
        HOSTILE,
        html.paragraph(HOSTILE, "lead"),
        html.section(HOSTILE, strip_chart(strips, unit=HOSTILE), html.code(HOSTILE)),
        html.table([HOSTILE, "b"], [[HOSTILE, HOSTILE]], HOSTILE),
        sheet([[image]], [HOSTILE], [[HOSTILE]]),
    )


def test_text_stays_text_everywhere():
    page = Tags(hostile_page())
    assert page.named("script") == []
    (img,) = page.named("img")
    assert img["src"].startswith("data:image/png;base64,")
    assert img["alt"] == HOSTILE
    assert not any(name.startswith("on") for _, attributes in page.found for name in attributes)
    # title, heading, section, paragraph, code, 2 strips, 3 cells, a column, a caption; units come on top
    assert page.text.count(HOSTILE) >= 12
    assert page.named("svg")[0]["aria-label"].startswith(HOSTILE)


def test_page_asks_the_network_for_nothing():
    text = hostile_page()
    for _, attributes in Tags(text).found:
        for name in ("src", "href", "action", "poster", "srcset"):
            assert attributes.get(name, "data:").startswith("data:")
    assert not re.search(r"url\(|@import", html.STYLE)


def test_picture_keeps_its_pixels():
    import base64
    import io

    for channels in (1, 3):
        image = torch.randint(0, 256, (channels, 5, 4), dtype=torch.uint8)
        data = re.search(r"base64,([^\"]+)", picture(image, "x"))[1]
        array = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
        assert np.array_equal(array.reshape(5, 4, channels), image.permute(1, 2, 0).numpy())


@given(numbers, numbers, st.integers(3, 10))
def test_ticks_are_round_even_few_and_hold_the_range(a, b, most):
    low, high = min(a, b), max(a, b)
    ticks = nice_ticks(low, high, most)
    assert 2 <= len(ticks) <= most + 1
    assert ticks == sorted(set(ticks))
    step = ticks[1] - ticks[0]
    assert np.allclose(np.diff(ticks), step, rtol=1e-6, atol=2e-10)
    assert ticks[0] <= low + 1e-9
    assert ticks[-1] >= high - 1e-9
    assert ticks[-1] - ticks[0] <= (high - low) + 2 * step + 1e-9
    digits = f"{step:.6e}"[0]
    if high - low > 1e-3:
        assert digits in "125"


@given(st.lists(st.lists(numbers, min_size=1, max_size=5), min_size=1, max_size=4))
def test_everything_drawn_is_inside_the_chart(rows):
    """Also intervals that are infinite (one value) or wider than the values."""
    chart = strip_chart([Strip("row", values, interval(values)) for values in rows])
    places = [float(x) for x in re.findall(r'\b(?:x1|x2|cx|x)="(-?[\d.]+|nan|inf)%"', chart)]
    assert len(places) >= 3 * len(rows)
    assert all(0 <= place <= 100 for place in places)
    assert chart.count('class="seed"') == sum(len(values) for values in rows)


def test_places_are_in_the_order_of_the_values():
    chart = strip_chart([Strip("row", [60.0, 70.0, 90.0], Interval(70.0, 65.0, 75.0))])
    low, middle, high = (float(x) for x in re.findall(r'class="seed" cx="([\d.]+)%', chart))
    assert high - middle == pytest.approx(2 * (middle - low), abs=0.02)


def test_write_leaves_the_old_page_when_it_fails(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        html.write(path, "\ud800 cannot be written")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def browse(page: Path, folder: Path, *options: str) -> subprocess.CompletedProcess:
    quiet = [
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ]
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", *quiet, "--hide-scrollbars"]
    flags.append("--host-resolver-rules=MAP * ~NOTFOUND")  # not even the browser's own
    command = [CHROMIUM, *flags, f"--user-data-dir={folder / 'profile'}", *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


@needs_chromium
def test_browser_shows_the_page_without_errors_or_requests(tmp_path):
    page, log = tmp_path / "page.html", tmp_path / "net.json"
    html.write(page, hostile_page())
    result = browse(page, tmp_path, "--dump-dom", "--enable-logging=stderr", "--v=0", f"--log-net-log={log}")
    assert result.returncode == 0, result.stderr
    assert "CONSOLE" not in result.stderr
    shown = Tags(result.stdout)
    assert shown.named("script") == []
    assert re.search(r"<title>(.*?)</title>", result.stdout, re.S)[1].startswith("&lt;script&gt;")
    assert requests_of_page(log) == []


def requests_of_page(log: Path) -> list[str]:
    """What a page asked the network for; the browser's own requests have no origin and do not count."""
    lines = [line for line in log.read_text().splitlines() if '"initiator":"' in line]
    lines = [line for line in lines if '"initiator":"not an origin"' not in line]
    return [url for line in lines for url in re.findall(r'"url":"(http[^"]*)', line)]


@needs_chromium
def test_a_page_that_asks_the_network_would_be_noticed(tmp_path):
    page, log = tmp_path / "page.html", tmp_path / "net.json"
    page.write_text('<!doctype html><title>x</title><img src="http://example.invalid/x.png">')
    browse(page, tmp_path, "--dump-dom", f"--log-net-log={log}")
    assert requests_of_page(log) == ["http://example.invalid/x.png"]


@needs_chromium
def test_page_is_light_or_dark_as_the_reader_wants(tmp_path):
    page = tmp_path / "page.html"
    html.write(page, html.page("A page", html.paragraph("words")))
    brightness = []
    for scheme in (0, 1):  # dark, light
        shot = tmp_path / f"{scheme}.png"
        wanted = f"--blink-settings=preferredColorScheme={scheme}"
        browse(page, tmp_path, f"--screenshot={shot}", "--window-size=400,300", wanted)
        pixels = np.asarray(Image.open(shot).convert("L"), dtype=float)
        brightness.append((pixels[-1, -1], pixels.max() - pixels.min()))
    (dark, dark_contrast), (light, light_contrast) = brightness
    assert dark < 60 < 200 < light
    assert min(dark_contrast, light_contrast) > 150


@needs_chromium
def test_narrow_page_does_not_scroll_sideways(tmp_path):
    """At a phone's width; a frame as wide as the phone tells how wide the page in it became."""
    strips = [Strip("joint labels (SLA), aggregated", [70.0, 75.0], Interval(72.0, 60.0, 80.0))] * 3
    cells = ["a rather long heading of a row", *["-12.3 to +12.3"] * 4]
    inner = html.page(
        "Digits, five training images each", strip_chart(strips), html.table(cells, [cells], "t")
    )
    script = (
        "<script>onload = () => { const f = document.querySelector('iframe').contentDocument.documentElement;"
        "document.title = JSON.stringify({scroll: f.scrollWidth, client: f.clientWidth}); }</script>"
    )
    frame = (
        f'<iframe width="360" height="600" srcdoc="{inner.replace("&", "&amp;").replace(chr(34), "&quot;")}">'
    )
    outer = tmp_path / "outer.html"
    outer.write_text(f"<!doctype html><title></title>{frame}</iframe>{script}", encoding="utf-8")
    result = browse(outer, tmp_path, "--dump-dom")
    widths = json.loads(re.search(r"<title>(\{.*?\})</title>", result.stdout)[1])
    assert widths["scroll"] <= widths["client"]
