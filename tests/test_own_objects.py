"""Objects of one's own through `sla.fit` and back: data, backbones, methods, views and criteria."""

import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fake_tables
import sla
from refusals import refused
from sla.compare.comparison import compare
from sla.datasets.load import load
from sla.report.run import write_run_page
from sla.runs.config import read_config
from sla.runs.signals import StoppedError

QUICK = {
    "run__iterations": 4,
    "run__batch_size": 16,
    "run__evaluations": 1,
    "run__compile": False,
    "data__workers": 0,
    "augment": "crop(1)",
}
SMALL = {**QUICK, "model__backbone": "convnet4", "model__options": {"width": 4}}


@pytest.fixture(scope="module")
def digits():
    """120 real digits, uint8 (n, 1, 8, 8), and their labels."""
    train = load("digits").train
    return train.read(range(120)).images, train.targets[:120]


class Net(nn.Module):
    """A module that does not say how wide its features are."""

    def __init__(self, width=6):
        super().__init__()
        self.layer = nn.Conv2d(1, width, 3, padding=1)

    def forward(self, input):
        return self.layer(input).relu()  # a map, which is averaged


@dataclass(frozen=True)
class Remembering(sla.Baseline):
    """A method with a memory and an option that is no plain data."""

    weight: object = None

    def build_memory(self, num_images, num_classes):
        memory = nn.Module()
        memory.register_buffer("seen", torch.zeros(num_images))
        return memory

    def losses(self, heads, features, target, context=sla.StepContext()):  # noqa: B008
        if context.memory is not None:
            context.memory.seen[context.indices] += self.weight
        return super().losses(heads, features, target, context)


class Mirror(sla.Views):
    names = ("unchanged", "mirrored")

    def apply(self, input, view):
        return input.flip(-1) if view else input


def squared(logits, target):
    return (logits.softmax(1) - nn.functional.one_hot(target, logits.shape[1])).square().sum(1).mean()


def data_of_each_kind(images, labels):
    pillow = [Image.fromarray(image[0].numpy()) for image in images]
    names = [f"digit {number}" for number in range(10)]
    features = {"image": fake_tables.Image(), "label": fake_tables.ClassLabel(names)}
    table = fake_tables.HubDataset(features, image=pillow, label=labels.tolist())
    dataset = TensorDataset(images / 255, torch.as_tensor(labels))
    return {
        "tensors": (images, torch.as_tensor(labels)),
        "Pillow and names": (pillow, [names[label] for label in labels]),
        "dataset": (dataset,),
        "loader": (DataLoader(dataset, batch_size=8),),
        "table": ({"train": table, "test": table},),
    }


@pytest.fixture(scope="module")
def plain(digits, tmp_path_factory):
    """A run on arrays."""
    return sla.fit(digits[0].numpy(), digits[1], out=tmp_path_factory.mktemp("plain") / "run", **SMALL)


def test_every_kind_of_data_trains_to_the_same_weights(plain, digits, tmp_path):
    found = {}
    for kind, data in data_of_each_kind(*digits).items():
        run = sla.fit(*data, out=tmp_path / kind, **SMALL)
        assert isinstance(run, sla.Run)
        assert run.is_finished
        found[kind] = run.model.state_dict()
    first = plain.model.state_dict()
    for kind, weights in found.items():
        assert all(torch.equal(first[name], weights[name]) for name in first), kind
    assert read_config(tmp_path / "loader" / "config.yaml")["data"]["source"] == "object.data:TensorDataset"


def test_a_table_of_files_trains(digits, tmp_path, data_folder):
    images, labels = digits
    paths = [tmp_path / f"{row}.png" for row in range(40)]
    for path, image in zip(paths, images, strict=False):
        Image.fromarray(image[0].numpy()).resize((20, 16)).save(path)
    frame = fake_tables.Frame(path=paths, label=(labels[:40] % 2).tolist())
    run = sla.fit(frame, out=tmp_path / "run", **SMALL | {"model__options": {"width": 4}})
    assert run.config.data.stored_size == 32
    assert run.predict(paths[:3]).names == [run.classes[n] for n in run.predict(paths[:3]).labels]


def test_pandas_and_hugging_face_themselves(digits, tmp_path):
    images, labels = digits
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: a stand-in is tested")
    paths, names = [], [f"digit {label}" for label in labels]
    for row, image in enumerate(images):
        paths.append(str(tmp_path / f"{row}.png"))
        Image.fromarray(image[0].numpy()).save(paths[-1])
    frame = pandas.DataFrame({"path": paths, "label": names}, index=range(7, 127))
    frame["split"] = pandas.Categorical(["train"] * 100 + ["test"] * 20)
    run = sla.fit(frame, out=tmp_path / "frame", data__stored_size=8, **SMALL)
    assert run.classes == sorted(set(names))
    assert len(run.splits.test) == 20
    missing = frame.assign(label=frame["label"].where(frame["label"] != names[3]))
    refused("label of image 3 is missing", sla.fit, missing, out=tmp_path / "missing", **SMALL)
    assert sla.Objects(pandas.Series(paths), pandas.Series(labels)).load(8).train.classes[0] == "0"
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: a stand-in is tested")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=10)})
    table = datasets.Dataset.from_dict({"image": paths, "label": labels.tolist()}, features)
    parts = table.train_test_split(20, shuffle=False)
    for kind, data in {"dict": parts, "torch": table.with_format("torch"), "one": table}.items():
        run = sla.fit(data, out=tmp_path / kind, **SMALL)
        assert run.classes == [str(number) for number in range(10)]
    raw = table.cast_column("image", datasets.Image(decode=False))
    refused("column 'image' is not decoded", sla.fit, raw, out=tmp_path / "raw", **SMALL)
    refused("is a stream without length", sla.fit, table.to_iterable_dataset(), out=tmp_path / "x", **SMALL)


@pytest.fixture(scope="module")
def own(digits, tmp_path_factory):
    """A run in which everything is an object; and the objects."""
    objects = {
        "backbone": Net(),
        "method": Remembering(weight=torch.tensor(1.0)),
        "criterion": squared,
    }
    out = tmp_path_factory.mktemp("own") / "run"
    return sla.fit(*digits, out=out, **objects, **QUICK), objects


def test_a_run_of_objects_is_opened_and_evaluated_with_them(own, plain, digits, tmp_path):
    run, objects = own
    tree = read_config(run.folder / "config.yaml")
    assert tree["model"]["backbone"] == "object.backbone:Net"
    assert tree["model"]["options"] == {"in_channels": 1, "num_features": 6}  # measured
    assert tree["method"]["name"] == "object.method:Remembering"
    assert tree["method"]["criterion"] == "object.criterion:squared"
    assert not torch.equal(run.model.backbone.layer.weight, objects["backbone"].layer.weight)  # a copy
    refused("method: an object that was passed from Python", sla.Run, run.folder)
    refused("backbone: an object that was", sla.open_run, run.folder, method=objects["method"])
    refused("do not fit the backbone", sla.open_run, run.folder, backbone=Net(7), method=objects["method"])
    parts = {"backbone": Net(), "method": objects["method"]}
    again = sla.open_run(run.folder, **parts, data=digits)
    torch.testing.assert_close(again.evaluate().logits["single"], run.evaluate().logits["single"])
    page = write_run_page(again, tmp_path / "report.html")
    assert "held-out" in page
    assert "object.data" not in page
    with pytest.warns(sla.SLAWarning, match="run on arrays: .* were trained on and are left out"):
        assert len(again.evaluate(digits).targets) == len(run.evaluate().targets)
    found = compare([again, plain])
    assert len(found.entries) == 2
    found = again.predict(digits[0][:5])  # images as objects, too
    assert found.names == [again.classes[number] for number in found.labels]
    labels, probabilities = found
    assert torch.equal(labels, probabilities.argmax(1))


def test_predict_takes_one_image_and_refuses_what_is_none(plain, digits, tmp_path):
    path = tmp_path / "one.png"
    picture = Image.fromarray(digits[0][0, 0].numpy())
    picture.save(path)
    wanted = plain.predict(digits[0][:1]).probabilities
    for one in (str(path), path, picture, [path], [picture]):
        torch.testing.assert_close(plain.predict(one).probabilities, wanted, msg=str(one))
    loader = DataLoader(TensorDataset(*map(torch.as_tensor, digits)))
    for wrong in (None, 3, b"one.png", {"image": picture}, np.float32(1), loader, (x for x in [])):
        refused(f"(n, ...), not a {type(wrong).__name__}", plain.predict, wrong)
    refused("one image is x[None]", plain.predict, digits[0][0].permute(1, 2, 0))
    path.write_bytes(b"no image")
    assert "skip" not in refused("one.png: not an image", plain.predict, path)
    refused("run.evaluate((X, y))", plain.evaluate, *digits)


def test_one_colour_image_is_not_taken_for_several_grey_ones(digits, tmp_path):
    colours = digits[0].repeat(1, 3, 1, 1)
    run = sla.fit(colours, digits[1], out=tmp_path / "run", **SMALL)
    for one in (colours[0], colours[0].numpy(), colours[0].permute(1, 2, 0)):
        refused("one image is x[None]", run.predict, one)
        assert len(run.predict(one[None]).labels) == 1
    assert len(run.predict(digits[0][:5, 0]).labels) == 5  # grey images


def test_a_run_says_what_it_is(plain):
    top1 = plain.result["accuracies"][plain.checkpoint]["val"][plain.headline]["top1"]
    said = f"{plain.folder}, sla, {plain.checkpoint}: {top1:.1f}% on val, {plain.headline}"
    assert repr(plain) == f"<Run {said}>"


@pytest.mark.slow
def test_a_run_of_objects_is_exported(own, digits, tmp_path):
    run, objects = own
    again = sla.open_run(run.folder, backbone=Net(), method=objects["method"], data=digits)
    assert again.export(tmp_path / "model.onnx").what == "held-out images"


def test_commands_say_in_one_line_that_python_has_the_objects(own, plain, stopped):
    run, _ = own
    assert "method: an object that was passed from Python" in stopped(2, "evaluate", run.folder)
    for command in ("evaluate", "report"):
        assert "these images were passed from Python (arrays)" in stopped(2, command, plain.folder)
    assert "passed from Python" in stopped(2, "train", "--resume", "--out", plain.folder)


def test_resuming_compares_images_by_content(digits, tmp_path, stop_at):
    images, labels = digits
    objects = {"backbone": Net(), "criterion": squared}
    torch.manual_seed(0)
    whole = sla.fit(images, labels, tmp_path / "whole", **objects, **QUICK)
    with pytest.raises(StoppedError, match=r"to continue: sla\.fit\(\.\.\., out='.*half', resume=True\)$"):
        sla.fit(images, labels, tmp_path / "half", **objects, **QUICK, progress=stop_at(2))
    resume = {"out": tmp_path / "half", "resume": True}
    refused("1 is gone, 1 is new", sla.fit, images.clone().index_fill_(0, torch.tensor([3]), 0), labels,
            **resume, **objects)  # fmt: skip
    refused("criterion: an object that was passed", sla.fit, images, labels, **resume, backbone=Net())
    refused("model.backbone", sla.fit, images, labels, **resume, backbone=nn.Flatten())
    again = sla.fit(images.numpy(), labels.tolist(), **resume, **objects)
    first, second = whole.model.state_dict(), again.model.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert (tmp_path / "whole" / "metrics.csv").read_bytes() == (
        tmp_path / "half" / "metrics.csv"
    ).read_bytes()


@dataclass(frozen=True)
class Optioned(sla.Baseline):
    alpha: float = 1.0
    sizes: tuple = (1, 2)
    weight: object = None


def test_resuming_compares_the_options_of_a_method_of_ones_own(digits, tmp_path, stop_at):
    out = tmp_path / "run"
    with pytest.raises(StoppedError):
        sla.fit(*digits, out=out, method=Optioned(alpha=2.0), **SMALL, progress=stop_at(2))
    again = {"out": out, "resume": True}
    words = "method.options: alpha 3.0 is not 2.0$"
    refused(words, sla.fit, *digits, **again, method=Optioned(alpha=3.0))
    words = r"sizes \[2, 1\] is not \[1, 2\]$"
    refused(words, sla.fit, *digits, **again, method=Optioned(alpha=2.0, sizes=(2, 1)))
    refused(
        "method.options is given twice", sla.fit, *digits, method=Optioned(), method__options={"alpha": 2}
    )
    run = sla.fit(*digits, **again, method=Optioned(alpha=2.0))
    assert run.model.method.sizes == (1, 2)  # not the list of its file


def test_resuming_says_which_options_it_cannot_compare(own, digits):
    run, objects = own
    with pytest.warns(sla.SLAWarning, match="Remembering: weight: no plain data, so not compared"):
        sla.fit(*digits, out=run.folder, resume=True, **objects)


def test_resuming_with_other_views_is_refused(digits, tmp_path, stop_at):
    mirror, other = (sla.CustomViews(**{name: lambda x: x.flip(-1)}) for name in ("mirror", "flip"))
    with pytest.raises(StoppedError):
        sla.fit(*digits, out=tmp_path, views=mirror, **SMALL, progress=stop_at(2))
    words = "trained with the views identity, mirror, not identity, flip"
    refused(words, sla.fit, *digits, out=tmp_path, resume=True, views=other)


def test_objects_of_ours_become_plain_keys(digits, tmp_path):
    method = sla.SLA(sla.Rotation(0, 180), distill=True, beta=0.5)
    run = sla.fit(*digits, out=tmp_path / "run", method=method, **SMALL)
    keys = run.config.method
    assert (keys.name, keys.views, keys.beta) == ("sla+sd", "rot2", 0.5)
    assert sla.Run(run.folder).model.method == method
    same = sla.fit(*digits, out=tmp_path / "same", method="sla+sd", views="rot2", method__beta=0.5, **SMALL)
    ours, theirs = run.model.state_dict(), same.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    with_views = sla.fit(*digits, out=tmp_path / "views", views=Mirror(), **SMALL)
    assert with_views.model.method.views.names == Mirror.names
    assert len(sla.open_run(with_views.folder, views=Mirror()).model.method.views) == 2
    refused("given twice", sla.fit, *digits, method=sla.SLA(), views="rot2")
    refused("method.views is given twice", sla.fit, *digits, views="rot2", method__views="rot4")


def test_own_weights_are_kept_and_tuned(digits, tmp_path):
    net = Net()
    run = sla.fit(*digits, out=tmp_path / "run", backbone=net, model__weights="own", **QUICK)
    assert run.config.optimizer.name == "adamw"  # as for pretrained weights
    assert (run.model.backbone.layer.weight - net.layer.weight).abs().max() < 0.05
    refused(
        "is for a module that is passed", sla.fit, *digits, out=tmp_path / "x", model__weights="own", **SMALL
    )


def test_few_shot_learning_from_objects(digits, tmp_path):
    few = {"task": "fewshot", "episodes__way": 2, "episodes__query": 2, "episodes__test_query": 2}
    few |= {"run__iterations": 2, "run__evaluations": 1, "episodes__val_shot": 1, "episodes__test_shots": [1]}
    few |= {"data__val_per_class": 4, "episodes__val_episodes": 4, "episodes__test_episodes": 4}
    run = sla.fit(*digits, out=tmp_path / "few", **few)
    assert run.task == "fewshot"
    again = sla.open_run(run.folder, data=digits)
    assert again.test_set().classes == run.splits.test.classes


class Half(nn.Module):
    def forward(self, input):
        return input.half()


class Turned(Mirror):
    names = ("turned", "unchanged")

    def apply(self, input, view):
        return super().apply(input, 1 - view)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("a backbone is a name or a module", {"backbone": 3}),
        ("fails on a batch", {"backbone": nn.Linear(5, 5)}),
        ("not features (2, D)", {"backbone": nn.Flatten(0)}),
        ("a method is an object such as SLA()", {"method": 3}),
        ("views are an object such as Rotation()", {"views": 3}),
        ("a criterion is callable", {"criterion": 3}),
        ("on the meta device", {"backbone": Net().to("meta")}),
        ("gives torch.float16, not float32", {"backbone": nn.Sequential(Net(), Half())}),
        ("the criterion <lambda> is called with logits and targets", {"criterion": lambda logits: logits}),
        ("the criterion <lambda> is called", {"method": sla.SLA(criterion=lambda logits: logits)}),
        ("'run__epoch', did you mean 'run__epochs'?", {"run__epoch": 3}),
        ("'lr', did you mean 'optimizer__learning_rate'?", {"lr": 0.1}),
        ("'nope' is not the name of an object of your own", {"criterion": "nope"}),
        ("view 0 of Turned, 'turned', changes the image", {"views": Turned()}),
        ("classes are the names of classes", {"classes": 3}),
        ("columns are the names of", {"columns": "image"}),
        ("progress is an object of a subclass", {"progress": print}),
        ("are for named backbones", {"backbone": nn.Flatten(), "model__options": {"width": 3}}),
        ("needs at least two classes", {"classes": ["0"], "y": np.zeros(120)}),
    ],
)
def test_wrong_objects_get_one_line(digits, tmp_path, words, options):
    options.setdefault("y", digits[1])
    refused(words, sla.fit, digits[0], out=tmp_path / "run", **QUICK, **options)
    assert not (tmp_path / "run").exists()


def test_arguments_for_objects_are_refused_beside_a_name(tmp_path):
    refused("val is for images that are objects", sla.fit, "digits", val=([], []))
    refused("y is the labels of images", sla.fit, "digits", "runs/x", "runs/y")


def test_arguments_for_objects_are_refused_beside_images_that_are_ready(digits):
    ready = {"Objects": sla.Objects(*digits), "Dataset": load("digits").train, "digits": load("digits")}
    extra = {"y": digits[1], "val": digits, "test": digits, "classes": ["a"], "columns": ("image", "label")}
    for what, data in ready.items():
        for name, value in extra.items():
            refused(f"{name} is for images that are objects, not for {what}", sla.fit, data, **{name: value})


def test_models_of_ones_own_are_saved_and_loaded(tmp_path, digits):
    images = digits[0][:4] / 255
    views = sla.CustomViews(mirrored=lambda x: x.flip(-1))
    for method in (sla.SLA(distill=True), sla.SLA(views), Remembering(weight=1)):
        model = sla.create(Net(), 3, method, num_features=6).eval()
        model.class_names = ["a", "b", "c"]
        sla.save(model, tmp_path / "model.safetensors")
        refused("passed from Python|you have not allowed it", sla.load, tmp_path / "model.safetensors")
        again = sla.load(tmp_path / "model.safetensors", backbone=Net(), method=method)
        assert torch.equal(again(images), model(images))
        assert again.predict(images).names == [again.class_names[n] for n in again.predict(images).labels]
    copied = pickle.loads(pickle.dumps(sla.create("convnet4", 3, in_channels=1, width=4).eval()))
    assert copied(images).shape == (4, 3)


def test_runs_and_predictions_can_be_pickled(finished_run, digits):
    run = sla.Run(finished_run.folder)
    again = pickle.loads(pickle.dumps(run))
    first, second = run.predict(digits[0][:3]), again.predict(digits[0][:3])
    assert first.names == second.names == pickle.loads(pickle.dumps(first)).names


class Expanded(Net):
    """A buffer and a weight whose elements are one number in memory."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(1).expand(6))
        self.shift = nn.Parameter(torch.zeros(1).expand(6))

    def forward(self, images):
        return super().forward(images).mean((2, 3)) * self.scale + self.shift


def test_expanded_tensors_are_trained_saved_and_opened_again(digits, tmp_path):
    averaged = {"optimizer__ema": 0.9, "method__name": "baseline"}
    run = sla.fit(*digits, out=tmp_path / "run", backbone=Expanded(), **QUICK, **averaged)
    again = sla.open_run(run.folder, backbone=Expanded())
    assert len(again.model.backbone.shift.unique()) > 1
    model = sla.create(Expanded(), 3, sla.Baseline(), num_features=6)
    model.backbone.scale.copy_(torch.arange(6.0))
    sla.save(model, tmp_path / "model.safetensors")
    loaded = sla.load(tmp_path / "model.safetensors", backbone=Expanded())
    assert loaded.backbone.scale.tolist() == [0, 1, 2, 3, 4, 5]


class Tied(nn.Module):
    """Two layers with one weight, and a branch that depends on values."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.second.weight = self.first.weight

    def forward(self, images):
        hidden = self.first(images.flatten(1))
        return self.second(hidden if hidden.sum() > 0 else -hidden)


def test_tied_weights_and_branches_on_values_are_no_obstacle(tmp_path):
    digits = load("digits").train
    images, labels = digits.read(range(200)).images, digits.targets[:200]
    settings = {
        "run__iterations": 2,
        "run__batch_size": 16,
        "run__compile": False,
        "method__name": "baseline",
    }
    run = sla.fit(images, labels, out=tmp_path / "run", backbone=Tied(), **settings)
    assert run.result["cost"]["inference_flop"]["single"] == 2 * 2 * 64 * 64
    again = sla.open_run(tmp_path / "run", backbone=Tied())
    tied = again.model.backbone
    assert tied.second.weight is tied.first.weight
    assert torch.equal(tied.first.weight, run.model.backbone.first.weight)


def test_other_views_than_those_of_training_are_refused(tmp_path):
    model = sla.create(nn.Sequential(nn.Flatten(), nn.Linear(64, 16)), 10, sla.SLA(Mirror()), num_features=16)
    sla.save(model, tmp_path / "model.safetensors")
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 16))
    loaded = sla.load(tmp_path / "model.safetensors", backbone=backbone, views=Mirror())
    assert loaded.method.views.names == Mirror.names
    words = "trained with the views unchanged, mirrored, not 0°, 180°"
    refused(words, sla.load, tmp_path / "model.safetensors", backbone=backbone, views=sla.Rotation(0, 180))


def test_wrong_arguments_of_create_save_and_load_get_one_line(tmp_path):
    path = tmp_path / "model.safetensors"
    model = sla.create(Net(), 3, sla.Baseline(), num_features=6)
    sla.save(model, path)
    for backbone in (3, "resnet8", Net):
        refused("backbone: a module to load the weights into", sla.load, path, backbone=backbone)
    refused("views are an object such as Rotation()", sla.load, path, backbone=Net(), views=3)
    refused("no device 'gpu' on this machine", sla.load, path, "gpu", backbone=Net())
    refused("a backbone is a name or a module, not None", sla.create, None, 3)
    refused("a backbone is a module, not 'resnet8'", sla.Classifier, "resnet8", 3, sla.SLA())
    refused("origin must be what JSON can hold, not a set", sla.save, model, path, origin={1})
    lazy = sla.create(nn.Sequential(nn.Flatten(), nn.LazyLinear(6)), 3, sla.Baseline(), num_features=6)
    refused("a lazy layer has no weights yet", sla.save, lazy, path)
    refused("takes a tensor of images, not a ndarray", model, np.zeros((2, 1, 8, 8), np.float32))
    refused("takes a tensor of images, not a list", model, [1, 2], torch.tensor([0, 1]))
    refused("does not take images of torch.uint8", model, torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
    words = "backbone.layer.weight is (6, 1, 3, 3) in the file, not (5, 1, 3, 3)"
    refused(words, sla.load, path, backbone=Net(5))
    refused("the file also has backbone.layer.bias", sla.load, path, backbone=nn.Flatten())
    refused("out is the run's folder, not 3", sla.fit, [], [], 3)


def test_only_classifiers_are_saved_wrapped_or_not(tmp_path):
    model = sla.create(nn.Sequential(nn.Flatten(), nn.Linear(64, 16)), 10, sla.Baseline(), num_features=16)
    for wrapped in (model, nn.DataParallel(model)):
        sla.save(wrapped, tmp_path / "model.safetensors")
    refused("sla.save writes a Classifier, not Linear", sla.save, nn.Linear(2, 2), tmp_path / "x.safetensors")
