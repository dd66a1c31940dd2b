"""The catalogue: every dataset of the paper, with facts that can be counted again."""

import importlib.util
import re
from pathlib import Path

import pytest

from sla.datasets.catalogue import CATALOGUE, source_of
from sla.datasets.entry import Npm, Web
from sla.datasets.layouts import layouts_of

NAMES = ["mnist", "fashion-mnist", "digits", "cifar10", "cifar100", "cub200", "mit67", "stanford-dogs"]
NAMES += ["tiny-imagenet", "imagenet", "inaturalist2018", "mini-imagenet", "cifar-fs", "fc100"]


def test_every_dataset_has_an_entry_and_a_layout():
    assert list(CATALOGUE) == NAMES
    for entry in CATALOGUE.values():
        assert layouts_of(source_of(entry))
        assert bool(entry.agreement) == (entry.name in ("imagenet", "mini-imagenet"))
        assert entry.agreement or entry.name == "digits" or source_of(entry).routes


@pytest.mark.parametrize("name", NAMES)
def test_addresses_are_https_and_checksums_have_their_form(name):
    for route in CATALOGUE[name].routes:
        if isinstance(route, Npm):
            assert re.fullmatch(r"sha256:[0-9a-f]{64}", route.checksum)
            continue
        assert isinstance(route, Web)
        for file in route.files:
            assert file.url.startswith("https://")
            assert re.fullmatch(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", file.checksum or "md5:" + "0" * 32)
    assert all(re.fullmatch(r"[0-9a-f]{32}", md5) for md5 in CATALOGUE[name].checksums.values())


def test_checksums_that_torchvision_knows_too():
    spec = importlib.util.find_spec("torchvision")  # its text alone: importing it needs a matching torch
    if spec is None or spec.origin is None:
        pytest.skip("torchvision is not installed")
    folder = Path(spec.origin).parent / "datasets"
    text = (folder / "cifar.py").read_text() + (folder / "mnist.py").read_text()
    python = [CATALOGUE["cifar10"].checksums["data_batch_3"], CATALOGUE["cifar100"].checksums["meta"]]
    zipped = [
        (file.checksum or "").removeprefix("md5:")
        for name in ("mnist", "fashion-mnist")
        for route in CATALOGUE[name].routes
        if isinstance(route, Web)
        for file in route.files
    ]
    assert len(zipped) == 16
    assert {*python, *zipped} <= set(re.findall(r"[0-9a-f]{32}", text))
