"""`sla export`: the file answers as the run, says all that a stranger needs, and is all that is written."""

import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from importlib import util
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import commands
import sla
from made_data import digit_files
from refusals import fails, refused
from sla.backbones import list_backbones
from sla.backbones.cost import count_flops
from sla.datasets.load import load
from sla.errors import SLAError, SLAWarning
from sla.images.decode import open_rgb
from sla.images.store import ArrayImages, Dataset, Splits
from sla.onnx_preprocess import resize
from sla.sampling.draws import Draws
from sla.tasks.classifier.run import Run

onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra `export`")
pytest.importorskip("onnxscript", reason="needs the extra `export`")

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("SLA_SHARED_DATA", REPOSITORY / ".." / "shared" / "data"))
BIRDS = SHARED / "cub200_2011_s96.zip"
EXAMPLE = REPOSITORY / "examples" / "serve_onnx.py"
NAMES = ("<script>alert(1)</script>", "größer als 9: 犬\n", "2")
FEW = {"run__iterations": 2, "run__batch_size": 8, "run__compile": False, "data__workers": 0}
TINY = {**FEW, "model__backbone": "convnet4", "model__options": {"width": 8}}


def session(path):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def metadata(path):
    return session(path).get_modelmeta().custom_metadata_map


def quiet(folder):
    """An environment whose temporary folder is `spare`, where onnxruntime would leave its identifier."""
    (folder / "spare").mkdir()
    given = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    return {**given, "TMPDIR": str(folder / "spare")}


def sharpened(run, dataset):
    """The run with heads that tell images apart, as a trained one's do, and a temperature of 0.7: a net that
    always answers a third would agree with anything."""
    kinds = run.model.method.inferences
    run.result = {**run.result, "temperatures": {run.checkpoint: dict.fromkeys(kinds, 0.7)}}
    images, aspect = dataset.read(range(min(len(dataset), 48)))
    seen = run.pipeline(images, Draws(0, 0, len(images), 0, len(images)), aspect)
    with torch.no_grad():
        features = run.model.features(seen)
        for head in run.model.heads.values():
            if getattr(head, "kind", "linear") == "cosine":
                mean = torch.nn.functional.normalize(features, dim=1).mean(0)
                mean /= mean.norm()
                head.weight.sub_((head.weight @ mean)[:, None] * mean)
                head.scale *= 2 / head(features).std(0).mean().item()
            else:
                logits = head(features)
                factor = 2 / logits.std(0).mean()
                head.bias.sub_(logits.mean(0)).mul_(factor)
                head.weight.mul_(factor)
    return run


def expected(run, dataset, inference):
    """The run's calibrated probabilities, which must differ between images."""
    found = (run.evaluate(dataset).logits[inference] / run.temperatures.get(inference, 1.0)).softmax(1)
    assert found.std(0).max() > 0.01  # a hundred times what is allowed
    return found


def agrees(run, inference, path, dataset):
    """The plain model against the run, all images one by one and 64 at a time."""
    run.export(path, inference)
    images, aspect = dataset.read(range(len(dataset)))
    seen = run.pipeline(images, Draws(0, 0, len(images), 0, len(images)), aspect).numpy()
    model, wanted = session(path), expected(run, dataset, inference).numpy()
    for size in (1, 64):
        parts = [seen[start : start + size] for start in range(0, len(seen), size)]
        found = np.concatenate([model.run(None, {"images": part})[0] for part in parts])
        np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=0)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """201 real pictures of three classes: birds where they are, else digits made larger."""
    folder = tmp_path_factory.mktemp("pictures")
    if BIRDS.exists():
        with zipfile.ZipFile(BIRDS) as archive:
            names = [name for name in archive.namelist() if name.endswith(".webp")]
            classes = sorted({Path(name).parent.name for name in names})
            for number, place in enumerate((0, 60, 120)):
                (folder / str(number)).mkdir()
                some = [n for n in names if Path(n).parent.name in classes[place : place + 3]][:67]
                for name in some:
                    (folder / str(number) / Path(name).name).write_bytes(archive.read(name))
        return folder
    digits = load("digits").train
    for number in range(3):
        digit_files(digits, np.flatnonzero(digits.targets == number)[:67], folder)
    for place, file in enumerate(folder.rglob("*.png")):
        Image.open(file).convert("RGB").resize((80 + place % 40, 96)).save(file)
    return folder


@pytest.fixture(scope="module")
def photographs(pictures, tmp_path_factory):
    """A run on the pictures, seen as photographs are: cropped in their own proportions."""
    settings = {"data__stored_size": 40, "model__resolution": 32, "augment": "resized(0.35), flip"}
    settings["data__hold_out"] = 0.5
    run = sla.fit(str(pictures), tmp_path_factory.mktemp("runs") / "photographs", **TINY, **settings)
    return sharpened(run, run.find_images().dataset)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A run on grey pictures of 8 x 8."""
    run = sla.fit("digits", tmp_path_factory.mktemp("runs") / "digits", **{**TINY, "run__iterations": 12})
    return sharpened(run, run.dataset())


@pytest.fixture(scope="module")
def plain(digits, tmp_path_factory):
    """The digits' model for single inference on normalised images; its classes have strange names."""
    path, own = tmp_path_factory.mktemp("plain") / "model.onnx", digits.model.class_names
    digits.model.class_names = [*NAMES, *own[3:]]
    digits.export(path, "single")
    digits.model.class_names = own
    return path


@pytest.fixture(scope="module")
def typed(digits, tmp_path_factory):
    """What `sla export` wrote and said of the digits' run: aggregated, the preprocessing inside."""
    path = tmp_path_factory.mktemp("typed") / "new" / "model.onnx"
    words = ("export", digits.folder, path, "--inference", "aggregated", "--preprocessing")
    return path, commands.sla(*words)


def test_the_resize_is_pillows_to_the_bit():
    draws = np.random.default_rng(0)
    for size in (8, 17, 40):
        for place in range(40):
            height, width = draws.integers(1, 6 * size, 2)
            if place % 4 == 0:  # near where Pillow 13 starts with the rows
                width = draws.integers(size, 3 * size)
                height = size + 2 * (width - size) + draws.integers(-1, 2)
            pixels = draws.integers(0, 256, (height, width, 3), np.uint8)
            wanted = Image.fromarray(pixels).resize((size, size), Image.Resampling.BICUBIC, reducing_gap=2.0)
            found = resize(torch.from_numpy(pixels).permute(2, 0, 1)[None], size)[0].permute(1, 2, 0)
            np.testing.assert_array_equal(found.numpy(), np.asarray(wanted), err_msg=f"{height} {width}")


def test_the_file_answers_as_the_run(photographs, tmp_path):
    found = photographs.find_images()
    dataset = found.dataset
    assert (len(dataset), found.what) == (100, "held-out images")
    agrees(photographs, "aggregated", tmp_path / "model.onnx", dataset)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.slow
def test_with_the_preprocessing_inside_it_takes_pictures_as_they_are(photographs, tmp_path):
    dataset = photographs.find_images().dataset
    found = photographs.export(tmp_path / "model.onnx", "distilled", preprocessing=True)
    assert found.difference < 1e-3
    assert found.images == 64
    model, wanted = session(tmp_path / "model.onnx"), expected(photographs, dataset, "distilled").numpy()
    sizes, gaps = set(), []
    for place in range(0, 100, 3):
        picture = np.asarray(open_rgb(dataset.name(place)))
        sizes.add(picture.shape)
        (answer,) = model.run(None, {"images": picture[None]})
        gaps.append(abs(answer[0] - wanted[place]).max())
    assert len(sizes) > 5
    assert max(gaps) < 1e-3
    assert np.median(gaps) < 1e-5


def test_exported_as_aggregated_it_gives_the_labels_of_predict(digits, typed, tmp_path):
    out, told = typed
    test = load("digits").test
    digit_files(test, range(100), tmp_path / "some", "{place:03}.png")
    difference = re.search(r"is (\S+), on 64 test images", told)
    assert float(difference[1]) < 1e-4
    assert [path.name for path in out.parent.iterdir()] == ["model.onnx"]
    words = ("predict", digits.folder, tmp_path / "some", "--inference", "aggregated", "--json")
    said = commands.sla(*words)
    labels = [json.loads(line)["class"] for line in said.splitlines()]
    images = np.stack([np.asarray(open_rgb(path)) for path in sorted((tmp_path / "some").iterdir())])
    (found,) = session(out).run(None, {"images": images})
    classes = json.loads(metadata(out)["classes"])
    assert [classes[number] for number in found.argmax(1)] == labels
    assert len(set(labels)) > 2


def test_the_metadata_says_what_a_stranger_needs(digits, plain, photographs):
    found = metadata(plain)
    assert json.loads(found["classes"]) == [*NAMES, *"3456789"]
    assert found["inference"] == "single"
    assert json.loads(found["temperature"]) == digits.temperatures["single"]
    assert found["sla_version"] == sla.__version__
    assert found["checkpoint"] == "last"
    inference = json.loads(found["preprocessing"])
    assert not inference["in_graph"]
    assert (inference["channels"], inference["squeeze"]["size"], inference["resolution"]) == ("grey", 8, 8)
    assert inference["crop"] == {"rule": "center_window"}
    model = digits.config.model
    assert (inference["mean"], inference["std"]) == (list(model.mean), list(model.std))
    assert len(inference["steps"]) == 5
    # Nothing of this machine is in the file.
    content = plain.read_bytes()
    assert str(REPOSITORY).encode() not in content
    assert b"site-packages" not in content
    # The same preprocessing, done by a stranger from the metadata alone.
    serve = SimpleNamespace(**runpy.run_path(str(EXAMPLE)))
    from sla.export import describe

    inference = json.loads(describe(photographs, "single", False)["preprocessing"])
    assert inference["crop"]["rule"] == "center_crop"
    dataset = photographs.find_images().dataset
    images, aspect = dataset.read(range(20))
    seen = photographs.pipeline(images, Draws(0, 0, 20, 0, 20), aspect).numpy()
    means = []
    for place in range(20):
        answer = serve.prepare(np.asarray(open_rgb(dataset.name(place))), inference)
        levels = abs(answer - seen[place]) * 255 * np.array(inference["std"])[:, None, None]
        assert levels.max() < 2.5
        means.append(levels.mean())
    assert np.median(means) < 1e-3


@pytest.mark.parametrize(
    ("stored", "resolution", "augment"),
    [(9, 8, "crop(1)"), (8, 11, "crop(3)"), (12, 8, "none"), (8, 8, "none"), (12, 8, "resized(0.5)")],
)
def test_every_rule_of_the_crop_is_the_pipelines(stored, resolution, augment):
    from sla.augment.pipelines import eval_pipeline
    from sla.onnx_preprocess import Preprocess

    draws = np.random.default_rng(0)
    for mean, std in (((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)), ((0.4,), (0.2,))):
        pipeline = eval_pipeline(augment, resolution, mean, std)
        module = Preprocess(pipeline, stored, torch.tensor(mean), torch.tensor(std))
        for height, width in ((stored, stored), (21, 14), (60, 130)):
            pixels = draws.integers(0, 256, (height, width, 3), np.uint8)
            squeezed = Image.fromarray(pixels).resize((stored, stored), Image.Resampling.BICUBIC, None, 2.0)
            images = torch.from_numpy(np.array(squeezed)).permute(2, 0, 1)[None]
            wanted = pipeline(images, Draws(0, 0, 1, 0, 1), torch.tensor([width / height]))
            found = module(torch.from_numpy(pixels)[None])
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


def test_a_run_whose_data_is_gone_is_checked_on_noise(pictures, tmp_path):
    data = load("digits")
    splits = Splits("mine", data.train, None, None, data.mean, data.std)
    run = Run(sla.fit(splits, tmp_path / "run", **TINY).folder)  # opened again: nothing is in memory
    with pytest.warns(SLAWarning, match="so noise"):
        found = run.export(tmp_path / "model.onnx", "single")
    assert found.what == "noise images"
    assert found.difference < 1e-4


def test_four_channels_are_exported_without_the_preprocessing_of_pictures(tmp_path):
    pixels = torch.randint(0, 256, (40, 4, 8, 8), dtype=torch.uint8)
    data = Dataset(ArrayImages(pixels), np.arange(40) % 2, ("a", "b"))
    run = sla.fit(Splits("mine", data), tmp_path / "run", **TINY)
    refused("a model of 4 channels", run.export, tmp_path / "model.onnx", preprocessing=True)
    assert not (tmp_path / "model.onnx").exists()


def test_what_is_wrong_is_one_line_and_nothing_is_written(digits, plain, tmp_path, monkeypatch):
    out = tmp_path / "out" / "model.onnx"
    baseline = sla.fit("digits", tmp_path / "baseline", **{**TINY, "method__name": "baseline"})
    for words, told in {
        (digits.folder, out, "--inference", "agregated"): "did you mean 'aggregated'?",
        (baseline.folder, out, "--inference", "aggregated"): "this model has no aggregated inference",
        (digits.folder, tmp_path): "a folder, not a file to write",
        (tmp_path, out): "not a run",
        (digits.folder, out, "--checkpoint", "first"): "no first checkpoint",
    }.items():
        refused(told, commands.sla, "export", *words)
    assert not out.exists()
    refused("a folder", digits.export, tmp_path)
    # A file that answers otherwise than the run takes nobody's place.
    monkeypatch.setattr("sla.export.convert", lambda *given: plain.read_bytes())
    out.parent.mkdir(exist_ok=True)
    out.write_bytes(b"before")
    fails(SLAError, "not written", digits.export, out, "aggregated")
    assert out.read_bytes() == b"before"
    assert [path.name for path in out.parent.iterdir()] == ["model.onnx"]


def test_the_example_serves_with_onnxruntime_and_numpy_alone(digits, plain, typed, tmp_path):
    """In a process where torch, Pillow and sla cannot be imported, without and with the preprocessing."""
    test = load("digits").test
    images = test.read(range(4)).images
    for place, pixels in enumerate(images[:, 0].numpy()):
        if place % 2:
            np.save(tmp_path / f"{place}.npy", pixels)
        else:
            (tmp_path / f"{place}.pgm").write_bytes(b"P5\n# a digit\n8 8\n255\n" + pixels.tobytes())
    files = [tmp_path / f"{place}.{'npy' if place % 2 else 'pgm'}" for place in range(4)]
    for name in ("torch", "PIL", "sla"):
        (tmp_path / "blocked").mkdir(exist_ok=True)
        (tmp_path / "blocked" / f"{name}.py").write_text("raise ImportError('blocked')")
    alone = {**quiet(tmp_path), "PYTHONPATH": str(tmp_path / "blocked")}
    for model, run, inference in ((plain, digits, "single"), (typed[0], Run(digits.folder), "aggregated")):
        command, classes = [sys.executable, EXAMPLE, model], json.loads(metadata(model)["classes"])
        done = subprocess.run([*command, *files], capture_output=True, encoding="utf-8", env=alone)
        assert done.returncode == 0, done.stderr
        logits = run.evaluate(test.subset(range(4))).logits[inference]
        wanted = (logits / run.temperatures[inference]).softmax(1)
        for probabilities, file in zip(wanted, files, strict=True):
            best = int(probabilities.argmax())
            assert f"{file}\t{classes[best]} {100 * probabilities[best]:.1f}%" in done.stdout
    assert list((tmp_path / "spare").iterdir()) == []
    wrong = tmp_path / "wrong.jpg"
    wrong.write_bytes(b"\xff\xd8 not numpy's")
    done = subprocess.run([*command, wrong], capture_output=True, encoding="utf-8", env=alone)
    assert done.returncode == 1
    assert done.stderr == f"{wrong}: not .npy, PPM or PGM; other formats need Pillow\n"
    process = subprocess.Popen(
        [*command, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=alone
    )
    try:
        address = process.stdout.readline().decode().strip()
        with urllib.request.urlopen(address, files[1].read_bytes()) as answer:
            first = json.load(answer)["classes"][0]
        assert first["class"] == classes[int(wanted[1].argmax())]
        assert first["probability"] == pytest.approx(wanted[1].max().item(), abs=1e-4)
        pickled = io.BytesIO()
        np.save(pickled, np.array([{}], dtype=object), allow_pickle=True)
        for body in (b"nothing", pickled.getvalue(), b"P5 99999 99999 255 x"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(address, body)
            assert refused.value.code == 400
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", list_backbones())
def test_every_backbone_and_kind_of_inference(name, pictures, tmp_path):
    """Within 1e-4 of the run on 100 real images, at batch 1 and 64; very large nets on ten."""
    settings = {"data__stored_size": 40, "model__resolution": 32, "augment": "resized(0.35), flip"}
    settings |= {"model__backbone": name, "model__weights": "none", "data__hold_out": 0.5}
    run = sla.fit(str(pictures), tmp_path / "run", **{**FEW, **settings})
    dataset = run.find_images().dataset
    if count_flops(run.model.backbone, (3, 32, 32)) > 5e9:
        dataset = dataset.subset(range(0, len(dataset), 10))
    sharpened(run, dataset)
    assert run.model.method.inferences == ("single", "aggregated", "distilled")
    for inference in run.model.method.inferences:
        agrees(run, inference, tmp_path / f"{inference}.onnx", dataset)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "head", "views"),
    [
        ("sla+sd", "linear", "rot4"),
        ("sla+sd", "linear", "rgb6*rot2"),
        ("sla+sd", "cosine", "rgb(RGB,BGR)"),
        ("sla", "cosine", "rot4*rgb3"),
        ("sla", "linear", "rot(0,270)"),
        ("mt", "linear", "rgb6"),
        ("da", "cosine", "rgb3"),
        ("baseline", "linear", "none"),
    ],
)
def test_every_method_and_kind_of_views(method, head, views, pictures, tmp_path):
    settings = {"data__stored_size": 40, "model__resolution": 32, "augment": "crop(4)", "data__hold_out": 0.5}
    settings |= {"method__name": method, "method__head": head, "method__views": views}
    run = sla.fit(str(pictures), tmp_path / "run", **{**TINY, **settings})
    dataset = run.find_images().dataset
    sharpened(run, dataset)
    for inference in run.model.method.inferences:
        agrees(run, inference, tmp_path / f"{inference}.onnx", dataset)


@pytest.mark.slow
def test_timm_models_are_exported_too(pictures, tmp_path):
    if util.find_spec("timm") is None:
        pytest.skip("needs the extra `timm`")
    settings = {"model__backbone": "timm:convnext_atto", "data__stored_size": 64, "model__resolution": 64}
    settings |= {"model__weights": "none", "data__hold_out": 0.5}
    run = sla.fit(str(pictures), tmp_path / "run", **FEW, **settings)
    dataset = run.find_images().dataset
    agrees(sharpened(run, dataset), "aggregated", tmp_path / "model.onnx", dataset)


@pytest.mark.slow
def test_a_whole_run_is_exported_by_a_process_of_its_own(digits, tmp_path):
    """As typed; the working folder and the temporary one are as they were."""
    folder = shutil.copytree(digits.folder, tmp_path / "run")
    (tmp_path / "here").mkdir()
    command = [sys.executable, "-m", "sla", "export", folder, tmp_path / "here" / "model.onnx"]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path / "here", env=quiet(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["model.onnx"]
    assert list((tmp_path / "spare").iterdir()) == []
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
