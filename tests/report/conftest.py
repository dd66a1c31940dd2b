"""What the tests of pages share: a parser, made-up predictions under hostile names, and a browser."""

import base64
import io
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image

from browser import CHROMIUM, FLAGS
from sla.compare.comparison import Comparison, Entry
from sla.datasets.load import load
from sla.images.store import Dataset
from sla.report.compare import compare_page
from sla.report.labels import label_page
from sla.report.run import run_page
from sla.tasks.classifier.evaluation import Outputs
from sla.tasks.classifier.label_doubts import Judged, LabelCheck
from sla.tasks.classifier.run import Run

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\"'&"


class Page(HTMLParser):
    """The elements of a page with their attributes, its text, and its tables."""

    def __init__(self, source):
        super().__init__()
        self.source, self.found, self.text = source, [], ""
        self.tables: dict[str, list[list[str]]] = {}
        self.cell, self.caption = False, ""
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.cell = tag in ("td", "th") or (self.cell and tag == "span")
        if tag == "div" and dict(attrs).get("role") == "region":
            self.caption = dict(attrs)["aria-label"]
            self.tables[self.caption] = []
        elif tag == "tr":
            self.tables[self.caption].append([])
        elif self.cell and tag != "span":
            self.tables[self.caption][-1].append("")

    def handle_data(self, data):
        self.text += data
        if self.cell:
            self.tables[self.caption][-1][-1] += data.replace("\xa0", " ")

    def handle_endtag(self, tag):
        self.cell = self.cell and tag == "span"

    def named(self, tag):
        return [attributes for name, attributes in self.found if name == tag]

    @property
    def words(self):
        """The text as a browser would show it: line breaks are spaces."""
        return " ".join(self.text.split())

    def pixels(self, description):
        """The image whose description starts like this."""
        (image,) = [one for one in self.named("img") if one["alt"].startswith(description)]
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(image["src"].partition(",")[2]))))


@pytest.fixture(scope="session")
def hostile():
    """A text that would run a script if it were taken for markup."""
    return HOSTILE


@pytest.fixture(scope="session")
def parse():
    return Page


@pytest.fixture(scope="session")
def made_up():
    """A function for digits under made-up classes, with outputs that are right about two times in three."""

    def make(num_classes, count, inferences=("single",)):
        draws, digits = np.random.default_rng(0), load("digits").test
        targets = draws.integers(0, num_classes, count)
        names = (HOSTILE, *(f"{number:03d} {'long name ' * 3}" for number in range(1, num_classes)))
        dataset = Dataset(digits.images, targets, names, draws.integers(0, len(digits.images), count))
        shape, right = (count, num_classes), 3 * np.eye(num_classes)[targets]
        logits = {name: torch.from_numpy(draws.normal(size=shape) + right) for name in inferences}
        return dataset, Outputs(logits, torch.from_numpy(targets))

    return make


@pytest.fixture(scope="session")
def hostile_run(finished_run, tmp_path_factory):
    """A run in a folder whose name is long and looks like markup."""
    folder = tmp_path_factory.mktemp("hostile") / f"<b>{'x' * 60}"
    return Run(shutil.copytree(finished_run.folder, folder))


@pytest.fixture(scope="session")
def comparison(hostile_run, made_up):
    """Three inferences of one run compared on made-up predictions."""
    dataset, outputs = made_up(12, 300, hostile_run.model.method.inferences)
    entries = []
    for inference, logits in outputs.logits.items():
        confidence, predicted = logits.softmax(1).max(1)
        entries.append(Entry(hostile_run, inference, predicted, confidence))
    return Comparison(dataset, "test images", entries, ["A note with <b>tags</b>."])


@pytest.fixture(scope="session", params=["comparison", "labels", "run, 12 classes", "run, 200 classes"])
def page(request, hostile_run, comparison, made_up):
    """The source of every kind of page, under hostile names."""
    if request.param == "comparison":
        return compare_page(comparison)
    if request.param == "labels":
        dataset, outputs = made_up(12, 300)
        found = LabelCheck(
            dataset.classes, [Judged("train", dataset, outputs.logits["single"])], HOSTILE, (HOSTILE,)
        )
        return label_page(found, "some data", HOSTILE)
    num_classes = 12 if "12" in request.param else 200
    dataset, outputs = made_up(num_classes, 2000, hostile_run.model.method.inferences)
    return run_page(hostile_run, dataset, outputs, "test images")


@pytest.fixture
def browse(tmp_path):
    """Opens a page's source in a browser: the finished process, and what the page asked the network for."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")

    def visit(source, *options):
        file, log = tmp_path / "page.html", tmp_path / "net.json"
        file.write_text(source, encoding="utf-8")
        command = [CHROMIUM, *(f"--{flag}" for flag in FLAGS), f"--user-data-dir={tmp_path / 'profile'}"]
        command.append("--host-resolver-rules=MAP * ~NOTFOUND")  # no network for the browser itself either
        command += ["--dump-dom", "--enable-logging=stderr", "--v=0", f"--log-net-log={log}", *options]
        done = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=120)
        return done, _requests(log)

    return visit


def _requests(log):
    """The browser's own requests have no origin and do not count."""
    lines = [line for line in log.read_text().splitlines() if '"initiator":"' in line]
    lines = [line for line in lines if '"initiator":"not an origin"' not in line]
    return [url for line in lines for url in re.findall(r'"url":"(http[^"]*)', line)]
