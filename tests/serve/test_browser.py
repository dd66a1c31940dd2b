"""The page in a real Chromium, at the width of a screen and of a phone."""

import csv
import io
import itertools
import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from browser import CHROMIUM, Browser
from readability import MEASURE
from sla.datasets.load import load
from sla.serve.app import create_app

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
ANSWERED = "pictures.length && pictures.every(one => one.answer || one.error)"


@pytest.fixture(scope="module")
def hostile_run(copied, served_folder):
    run = copied("<b>run")
    run.model.class_names = [HOSTILE, "=1+1", "long name " * 12, *map(str, range(3, 10))]
    return run


@pytest.fixture(scope="module")
def address(hostile_run, serve):
    app = create_app(hostile_run)
    with serve(app) as found:
        app.state.service.nearest.wait()
        yield found


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    found = Browser(tmp_path_factory.mktemp("browser") / "profile")
    yield found
    found.close()


@pytest.fixture
def folder(tmp_path, digit, junk):
    """Twelve pictures, one in a folder below, and a file that is none."""
    found = tmp_path / "pictures"
    (found / "more").mkdir(parents=True)
    for number in range(11):
        (found / f"{number}.png").write_bytes(digit(number))
    (found / "more" / "=cmd.jpg").write_bytes(digit(11, "JPEG"))
    (found / "notes.txt").write_text("no picture")
    return found


def post(address, data):
    """Status and answer."""
    try:
        with urllib.request.urlopen(f"{address}/api/predict", data, timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_fifty_requests_at_once(address, digit, junk):
    """Each gets the answer to its own picture, those with junk their error."""
    bodies = [digit(place) for place in range(43)] + [data for data, _ in junk.values()]
    alone = [post(address, body) for body in bodies]
    assert len(bodies) == 50
    with ThreadPoolExecutor(50) as pool:
        together = list(pool.map(lambda body: post(address, body), bodies))
    assert [code for code, _ in together] == [200] * 43 + [400] * 7
    for (_, expected), (_, found) in zip(alone[:43], together, strict=False):
        assert [one["class"] for one in found["classes"]] == [one["class"] for one in expected["classes"]]
        assert found["probability"] == pytest.approx(expected["probability"], abs=1e-5)
        assert [one["file"] for one in found["nearest"]] == [one["file"] for one in expected["nearest"]]
    assert together[43:] == alone[43:]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pictures_are_chosen_and_answered(browser, address, folder, junk, width, dark):
    (folder / "broken.jpg").write_bytes(junk["truncated.jpg"][0])
    browser.open(address, width, dark=dark)
    browser.choose("#files", folder / "0.png", folder / "1.png", folder / "broken.jpg")
    browser.until(ANSWERED)
    cards = browser.run("[...document.querySelectorAll('.picture')].map(one => one.innerText)")
    for card, name in zip(cards, ("0.png", "1.png"), strict=False):
        expected = post(address, (folder / name).read_bytes())[1]
        assert name in card
        assert expected["class"].strip() in card
        assert f"{100 * expected['probability']:.1f}%" in card
        assert "views alone say" in card
        assert "Nearest training pictures" in card
    assert "a damaged image" in cards[2]
    assert browser.run("document.querySelectorAll('.nearest img').length") == 8
    found = browser.run(f"(() => {{ {MEASURE} return measure(document, window); }})()")
    assert found["wide"] <= found["width"] == width
    assert found["bad"] == []
    assert found["least"] >= 4.5
    assert found["levels"][0] == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(found["levels"]))


@pytest.mark.parametrize("width", [1280, 390])
def test_a_folder_is_dropped(browser, address, folder, width):
    browser.console.clear()
    browser.open(address, width)
    browser.drop(folder)
    browser.until(f"{ANSWERED} && pictures.length === 12")
    assert "12 pictures. 1 file is no picture." in browser.run("document.body.innerText")
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("document.title") == "<b>run"  # nothing in a name has run
    assert browser.run("document.querySelectorAll('.picture img[src=\"x\"]').length") == 0
    assert browser.console == []  # no error, nothing that the policy had to stop


def test_the_threshold_and_the_table(browser, address, folder, hostile_run):
    browser.open(address, 1280)
    browser.drop(folder)
    browser.until(f"{ANSWERED} && pictures.length === 12")
    for least in (0, 30, 100):
        browser.run(f"byId('threshold').value = {least}; byId('threshold').oninput()")
        shares = browser.run("pictures.map(one => one.answer.probability)")
        said = browser.run("pictures.map(one => one.card.querySelector('.class').textContent)")
        assert [one == "unsure" for one in said] == [share < least / 100 for share in shares]
        header, *rows = csv.reader(io.StringIO(browser.run("csv()"), newline=""))
        assert [row[1].removeprefix("'") for row in rows] == said
        assert not any(cell[:1] in ("=", "+", "-", "@") for row in (header, *rows) for cell in row)
        assert header[6:] == [HOSTILE, "'=1+1", *hostile_run.classes[2:]]
        assert [sum(map(float, row[6:])) for row in rows] == pytest.approx([1.0] * 12, abs=1e-4)
    assert [row[0] for row in rows][-1] == "pictures/more/=cmd.jpg"
    browser.run("byId('counts').querySelector('button').click()")
    assert browser.run("[...document.querySelectorAll('.picture')].filter(one => !one.hidden).length") == 12


def test_an_answer_is_corrected_and_trains(browser, address, folder, hostile_run, digit):
    browser.open(address, 390)
    browser.choose("#files", folder / "2.png")
    browser.until(ANSWERED)
    browser.run(
        "(() => { const choice = document.querySelector('select'); choice.focus(); choice.value = '=1+1';"
        " choice.dispatchEvent(new Event('change')); })()"
    )
    browser.until("document.querySelector('.corrected')")
    assert "kept for the next training" in browser.run("document.body.innerText")
    assert browser.run("document.querySelector('.class').textContent") == "=1+1"
    table = hostile_run.folder / "corrections.csv"
    path, label = table.read_text().splitlines()[1].split(",")
    assert label == "'=1+1"
    assert (hostile_run.folder / path).read_bytes() == (folder / "2.png").read_bytes()
    browser.run("byId('clear').click()")
    assert browser.run("document.querySelectorAll('.picture').length") == 0
    # It trains, with a picture of another class beside it.
    (hostile_run.folder / "other.png").write_bytes(digit(9))
    table.write_text(table.read_text() + "other.png,9\n")
    found = load(table).train
    assert set(found.classes) == {"=1+1", "9"}
