"""What a program gets: the same answers as `sla predict`, one line of JSON about whatever is wrong."""

import json

import pytest
import torch

import sla
from commands import sla as command
from sla.datasets.load import load
from sla.sampling.draws import Draws
from sla.serve import app as application
from sla.serve import uploads, worker
from sla.serve.app import create_app
from sla.serve.guard import HEADERS
from sla.tasks.classifier.unlike import UnlikeRule


@pytest.fixture
def files(digit, tmp_path):
    found = [tmp_path / f"{number}.png" for number in range(6)]
    for number, file in enumerate(found):
        file.write_bytes(digit(number))
    return found


@pytest.mark.parametrize("least", [0.0, 0.3])
def test_answers_are_those_of_predict(client, run, files, least):
    said = command("predict", run.folder, *files, "--json", "--top", 10, "--min-confidence", least)
    for file, line in zip(files, said.splitlines(), strict=True):
        expected = json.loads(line)
        found = client.post(f"/api/predict?top=10&min_confidence={least}", content=file.read_bytes()).json()
        assert found["class"] == expected["class"]
        assert [one["class"] for one in found["classes"]] == [one["class"] for one in expected["classes"]]
        shares = [one["probability"] for one in expected["classes"]]
        assert [one["probability"] for one in found["classes"]] == pytest.approx(shares, abs=2e-6)
        assert found["probability"] == found["classes"][0]["probability"]


def test_some_are_unsure_and_some_are_not(client, digit):
    """By the threshold of the server, where a request has none."""
    found = [client.post("/api/predict?top=1", content=digit(place)).json() for place in range(20)]
    named = [one["class"] == one["classes"][0]["class"] for one in found]
    assert named == [one["probability"] >= 0.5 for one in found]
    assert all(one["class"] == "unsure" for one, is_named in zip(found, named, strict=True) if not is_named)
    best = sorted(one["probability"] for one in found)[10]
    middle = [
        client.post(f"/api/predict?min_confidence={best}", content=digit(place)).json()["class"] != "unsure"
        for place in range(20)
    ]
    assert 9 <= sum(middle) <= 11


def test_views_say_what_each_says_alone(client, run, digit, tmp_path):
    (tmp_path / "a.png").write_bytes(digit(3))
    images, aspect = run.pictures([tmp_path / "a.png"]).read([0])
    views = run.model.method.views.stack(run.pipeline(images, Draws(0, 0, 1), aspect))[0]
    found = client.post("/api/predict", content=digit(3)).json()["views"]
    assert [one["view"] for one in found] == list(run.model.method.views.names)
    with torch.inference_mode():
        for number, (one, seen) in enumerate(zip(found, views, strict=True)):
            logits = run.model.heads["joint"].block(run.model.features(seen[None]), number)[0]
            shares = (logits / run.temperatures["single"]).softmax(0)
            assert one["class"] == run.classes[int(shares.argmax())]
            assert one["probability"] == pytest.approx(float(shares.max()), abs=1e-5)


def test_pictures_unlike_the_training_pictures_are_marked_as_predict_marks_them(run, ask, files):
    run = sla.Run(run.folder)
    images, aspect = run.pictures(files).read(range(len(files)))
    with torch.inference_mode():
        features = run.model.features(run.pipeline(images, Draws(0, 0, len(files)), aspect))
    features = torch.nn.functional.normalize(features, dim=1)
    distances = 1 - features @ features[0]  # as if the first were the mean of the only class
    threshold = float(distances.sort().values[2:4].mean())
    run.unlike_rule = UnlikeRule(features[:1], threshold, 0.02, 100)
    with ask(create_app(run, nearest=0)) as client:
        found = [client.post("/api/predict", content=file.read_bytes()).json()["unlike"] for file in files]
    assert found == (distances > threshold).tolist() == run.predict(files).unlike.tolist()
    assert sum(found) == 3
    run.unlike_rule = None
    with ask(create_app(run, nearest=0)) as client:
        assert client.post("/api/predict", content=files[0].read_bytes()).json()["unlike"] is None


def test_every_inference_of_the_run(run, ask, digit, tmp_path):
    (tmp_path / "a.png").write_bytes(digit(5))
    for inference in run.model.inferences:
        with ask(create_app(run, inference=inference, nearest=0)) as client:
            found = client.post("/api/predict?top=10", content=digit(5)).json()
            assert client.get("/api/info").json()["inference"] == inference
        expected = run.predict([tmp_path / "a.png"], inference).probabilities[0]
        shares = {one["class"]: one["probability"] for one in found["classes"]}
        assert [shares[name] for name in run.classes] == pytest.approx(expected.tolist(), abs=1e-5)


def test_methods_without_views(
    baseline_run, finished_run, tiny_settings, ask, digit, served_folder, tmp_path
):
    settings = tiny_settings | {"data__per_class": 20, "model__weights": str(finished_run.folder)}
    quick = sla.fit("digits", tmp_path / "quick", method__name="features", **settings)
    (tmp_path / "a.png").write_bytes(digit(0))
    for run in (baseline_run, quick):
        with ask(create_app(sla.Run(run.folder), nearest=2)) as client:
            found = client.post("/api/predict?min_confidence=0", content=digit(0)).json()
        assert found["views"] == []
        assert len(found["nearest"]) == 2
        assert found["class"] == run.predict([tmp_path / "a.png"]).names[0]


def test_several_pictures_in_a_form(client, digit, junk):
    """What is wrong with one does not fail the others; names are repeated, never used."""
    name = "../../etc/<b>a\nb.png"
    parts = [("a", (name, digit(0))), ("a", ("empty.png", b"")), ("b", ("two.jpg", digit(1, "JPEG")))]
    found = client.post("/api/predict", files=parts).json()["pictures"]
    assert [one["file"] for one in found] == ["../../etc/<b>a%0Ab.png", "empty.png", "two.jpg"]
    assert found[1] == {"file": "empty.png", "error": junk["empty.png"][1]}
    assert found[0]["classes"] == client.post("/api/predict", content=digit(0)).json()["classes"]


def test_files_that_are_no_pictures(client, junk, digit):
    for data, said in junk.values():
        response = client.post("/api/predict", content=data)
        assert response.status_code == 400
        assert said in response.json()["error"]
        assert "\n" not in response.json()["error"]
    assert client.post("/api/predict", content=digit(0)).status_code == 200


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("top=0", "top is a whole number from 1 to 10, not '0'"),
        ("top=1.5", "top is a whole number"),
        ("top=nan", "top is"),
        ("min_confidence=2", "min_confidence is a number from 0 to 1, not '2'"),
        ("min_confidence=x", "min_confidence is a number"),
    ],
)
def test_queries_that_are_refused(client, digit, query, said):
    response = client.post(f"/api/predict?{query}", content=digit(0))
    assert response.status_code == 400
    assert said in response.json()["error"]


def test_uploads_are_bounded(client, digit, monkeypatch):
    monkeypatch.setattr(uploads, "PICTURE_BYTES", 1 << 20)
    large = bytes((1 << 20) + 1)
    refused = client.post("/api/predict", content=large)
    assert (refused.status_code, refused.json()) == (413, {"error": "larger than the 1 MB allowed"})
    parts = [("a", ("large.png", large)), ("a", ("a.png", digit(0)))]
    first, second = client.post("/api/predict", files=parts).json()["pictures"]
    assert first == {"file": "large.png", "error": "larger than the 1 MB allowed"}
    assert "class" in second
    refused = client.post("/api/predict", files=[("a", ("a.png", digit(0)))] * 65)
    assert refused.status_code == 400
    assert "64" in refused.json()["error"]
    refused = client.post("/api/predict", data={"a": "no file"}, files={"b": (None, "no file")})
    assert "no picture in the form" in refused.json()["error"]


def test_a_whole_request_is_bounded(run, ask, monkeypatch):
    """By what it says, and by what it is where it says nothing."""
    monkeypatch.setattr(application, "REQUEST_BYTES", 2 << 20)
    with ask(create_app(run, nearest=0)) as client:
        parts = [("a", ("a.png", bytes(1 << 20)))] * 3
        assert client.post("/api/predict", files=parts).status_code == 413

        def chunks():
            yield from [bytes(1 << 20)] * 3

        refused = client.post("/api/predict", content=chunks(), headers={"Content-Type": "image/png"})
        assert (refused.status_code, refused.json()) == (413, {"error": "larger than the 2 MB allowed"})
        assert client.get("/api/health").json() == {"status": "ok"}


def test_a_full_queue_says_when_to_come_back(client, digit, monkeypatch):
    for module, limit in ((worker, "MOST_WAITING"), (application, "MOST_REQUESTS")):
        with monkeypatch.context() as patch:
            patch.setattr(module, limit, 0)
            response = client.post("/api/predict", content=digit(0))
        assert response.status_code == 503
        assert response.headers["Retry-After"] == "1"
        assert "try again in a second" in response.json()["error"]
    assert client.post("/api/predict", content=digit(0)).status_code == 200


def test_what_the_server_says_about_itself(client, run):
    found = client.get("/api/info").json()
    assert found["classes"] == run.classes
    assert found["inference"] == "distilled"
    assert found["min_confidence"] == 0.5
    assert found["nearest"] | {"note": ""} == {"state": "ready", "done": 1437, "total": 1437, "note": ""}
    assert client.get("/nowhere").json() == {"error": "Not Found"}
    assert client.get("/api/predict").status_code == 405
    assert client.get("/static/..%2Fapp.py").status_code == 404


def test_the_page_has_nothing_inline(client, copied, ask):
    for path in ("/", "/static/page.js", "/static/style.css", "/static/base.css", "/api/info", "/nowhere"):
        response = client.get(path)
        for name, value in HEADERS.items():
            assert response.headers[name] == value
    assert "unsafe" not in HEADERS["Content-Security-Policy"]
    with ask(create_app(copied("<img src=x onerror=alert(1)>"), nearest=0)) as other:
        page = other.get("/").text
    assert "<img src=x" not in page
    assert "&lt;img src=x" in page
    assert "<style" not in page
    assert "style=" not in page
    assert page.count("<script") == page.count('<script src="static/') == 2


HERE = "127.0.0.1:8000"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"host": "localhost:8000"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "localhost:9000"}, 200),  # another port of this machine that leads here
        ({"host": "evil.example"}, 421),
        ({"host": "evil.example:8000"}, 421),
        ({"host": "192.168.0.7:8000"}, 421),
        ({"host": "127.0.0.1.evil.example"}, 421),
        ({"host": "localhost@evil.example"}, 421),
        ({"host": "["}, 421),
        ({"host": ""}, 421),
        ({"origin": f"http://{HERE}"}, 200),
        ({"origin": "http://127.0.0.1:3000"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"content-length": str(1 << 40)}, 413),
        ({"content-length": "-1"}, 413),
    ],
)
def test_hosts_and_origins(client, headers, code):
    response = client.get("/api/health", headers={"host": HERE} | headers)
    assert response.status_code == code
    assert ("error" in response.json()) == (code != 200)


def test_a_link_to_the_page_works(client):
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/", headers=link).status_code == 200
    assert client.post("/api/predict", headers=link).status_code == 403


def test_an_open_server_knows_its_names(run, ask):
    app = create_app(run, host="0.0.0.0", allow_hosts=["Pictures.example"], nearest=0)
    with ask(app) as client:
        for host, code in {
            "192.168.0.7:8000": 200,
            "[fe80::1]:8000": 200,
            "pictures.example": 200,
            "evil.example": 421,
        }.items():
            assert client.get("/api/health", headers={"host": host}).status_code == code
        proxied = {"host": "127.0.0.1:8000", "origin": "https://pictures.example"}
        assert client.get("/api/health", headers=proxied).status_code == 200
        assert (
            client.get("/api/health", headers=proxied | {"origin": "https://evil.example"}).status_code == 403
        )


def test_from_python_with_the_images_that_it_still_has(tiny_settings, ask, digit, tmp_path, served_folder):
    train = load("digits").train
    images, _ = train.read(range(200))
    run = sla.fit(images.numpy(), train.targets[:200], tmp_path / "run", **tiny_settings)
    with ask(create_app(run)) as client:
        assert len(client.post("/api/predict", content=digit(0)).json()["nearest"]) == 4
