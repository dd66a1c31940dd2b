"""The nearest training pictures: by hand, from the cache, and when the pictures are gone."""

import io

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import sla
from sla.datasets.load import load
from sla.runs.images_record import TRAIN
from sla.sampling.draws import Draws
from sla.serve import nearest
from sla.serve.app import create_app
from sla.serve.nearest import NearestPictures, cache_file, read_cache
from sla.tasks.classifier.plan import make_plan


def unit_features(run, images, aspect):
    with torch.inference_mode():
        found = run.model.eval().features(run.pipeline(images, Draws(0, 0, len(images)), aspect)).double()
    return (found / found.norm(dim=1, keepdim=True).clamp(min=1e-9)).numpy()


def test_they_are_those_with_the_largest_cosine(client, run, digit, tmp_path):
    train = make_plan(run.config).train
    features = unit_features(run, *train.read(range(len(train))))
    for place in range(5):
        (tmp_path / "a.png").write_bytes(digit(place))
        own = unit_features(run, *run.pictures([tmp_path / "a.png"]).read([0]))[0]
        cosines = features @ own
        found = client.post("/api/predict", content=digit(place)).json()["nearest"]
        assert [one["similarity"] for one in found] == pytest.approx(np.sort(cosines)[:-5:-1], abs=1e-3)
        by_name = {train.name(row): row for row in range(len(train))}
        for one in found:
            row = by_name[one["file"]]
            assert cosines[row] == pytest.approx(one["similarity"], abs=1e-3)
            assert one["class"] == train.classes[train.targets[row]]
            picture = client.get(f"/{one['picture']}")
            assert picture.headers["content-type"] == "image/png"
            pixels = np.asarray(Image.open(io.BytesIO(picture.content)))
            assert (pixels == train.read([row]).images[0, 0].numpy()).all()


@pytest.mark.parametrize("place", ["99999", "9" * 30, "9" * 5000, "-1", "\u0663"], ids=len)
def test_a_place_without_a_picture_is_refused(client, place):
    """Whatever its length: Python converts no number of thousands of digits."""
    response = client.get(f"/nearest/{place}")
    assert (response.status_code, response.json()) == (404, {"error": "no such training picture"})


def test_only_pictures_that_it_trained_on(client, run):
    found = client.app.state.service.nearest.found
    assert len(found.names) == run.record.count(TRAIN) == 1293
    train = make_plan(run.config).train
    assert found.names == [train.name(row) for row in np.argsort(train.rows)]


class NoImages:
    """Stands for a run whose images nobody may read."""

    def __init__(self, run):
        self.run = run

    def __getattr__(self, name):
        assert name != "load_splits"
        return getattr(self.run, name)


def test_a_second_start_reads_no_image(client, run, messages):
    first = client.app.state.service.nearest.found
    second = NearestPictures(NoImages(run), None, messages)
    second.start()
    second.wait()
    assert second.state == "ready"
    # Both divide by their own norms: how many threads sum them changes the last digit.
    torch.testing.assert_close(second.found.features, first.features, rtol=0, atol=1e-6)
    assert second.found[1:] == first[1:]
    assert messages.passes == []


def test_a_damaged_cache_is_made_again(run, copied, ask, data_folder, digit):
    with ask(create_app(run)) as client:
        expected = client.post("/api/predict", content=digit(0)).json()
    file = cache_file(run)
    assert file.is_relative_to(data_folder)
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)
    assert read_cache(file) is None
    with ask(create_app(copied())) as client:  # the same weights in another folder
        assert client.post("/api/predict", content=digit(0)).json() == expected
    assert read_cache(file) is not None


def with_source(run, source):
    config = run.folder / "config.yaml"
    tree = yaml.safe_load(config.read_text())
    tree["data"]["source"] = str(source)
    config.write_text(yaml.safe_dump(tree))
    return sla.Run(run.folder)


def test_without_the_images_it_goes_on(copied, ask, data_folder, digit, tmp_path, messages):
    gone = with_source(copied(), tmp_path / "gone")
    with ask(create_app(gone, progress=messages)) as client:
        assert client.post("/api/predict?top=1", content=digit(0)).json()["nearest"] == []
        about = client.get("/api/info").json()["nearest"]
    (line,) = messages.lines
    assert "gone" in line
    assert line.startswith("no nearest training pictures: ")
    assert (about["state"], about["note"]) == ("unavailable", line)


def test_pictures_of_another_folder_are_not_taken_for_its_own(copied, data_folder, tmp_path, messages):
    for number in range(8):
        file = tmp_path / "other" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.effect_noise((8, 8), 50 + number).save(file)
    found = NearestPictures(with_source(copied(), tmp_path / "other"), None, messages)
    found.start()
    found.wait()
    assert found.state == "unavailable"
    assert "none of the run's training pictures is there" in found.note


def test_of_many_pictures_some(run, data_folder, monkeypatch, messages):
    monkeypatch.setattr(nearest, "MOST", 100)
    found = NearestPictures(run, lambda pixels: pixels.images.flatten(1)[:, :4].float(), messages)
    found.start()
    found.wait()
    assert found.total == 100
    assert 80 < len(found.found.names) <= 100  # without those that were held out
    assert set(messages.passes) == {nearest.WHAT}
    photographs = load("digits").train.read(range(2)).images
    assert nearest.thumbnail(photographs[0], 1.0).startswith(b"\x89PNG")
    wide = Image.open(io.BytesIO(nearest.thumbnail(torch.zeros(3, 256, 256, dtype=torch.uint8), 2.0)))
    assert (wide.format, wide.size) == ("JPEG", (160, 80))


def test_stopping_in_the_middle_leaves_nothing_behind(run, data_folder, messages):
    found = NearestPictures(run, lambda pixels: found.stop() or torch.ones(len(pixels.images), 4), messages)
    found.start()
    found.wait()
    assert found.state == "preparing"
    assert not cache_file(run).exists()
    assert messages.lines == []
