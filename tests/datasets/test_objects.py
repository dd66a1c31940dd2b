"""Objects in memory as training data: what is read of each kind, against the arrays they were made from."""

import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

import fake_tables
from refusals import refused
from sla.datasets.folder import load_folder
from sla.datasets.load import load
from sla.datasets.objects import MappedImages, Objects
from sla.errors import SLAWarning
from sla.images.content import dataset_keys

NAMES = [f"digit {number}" for number in range(10)]


@pytest.fixture(scope="module")
def digits():
    """60 real digits, uint8 (n, 8, 8), and their labels."""
    train = load("digits").train
    return train.read(range(60)).images[:, 0].numpy(), train.targets[:60]


class Pictures(Dataset):
    """A dataset of one's own; `as_image` makes what it gives."""

    def __init__(self, images, labels, as_image=lambda image: image):
        self.images, self.labels, self.as_image = images, labels, as_image

    def __len__(self):
        return len(self.images)

    def __getitem__(self, row):
        return self.as_image(self.images[row]), self.labels[row]


def colour(images):
    return np.stack([images, images // 2, 255 - images], 1)  # (n, 3, H, W)


def kinds(images, labels):
    """The same digits in every form; each is (objects, channels)."""
    grey, tensor = images[:, None], torch.as_tensor(images)[:, None]
    pillow = [Image.fromarray(image) for image in images]
    rgb, numbers = colour(images), torch.as_tensor(labels)
    hub = fake_tables.HubDataset(
        {"img": fake_tables.Image(), "fine": fake_tables.ClassLabel(NAMES)}, img=pillow, fine=labels.tolist()
    )
    tables = [{"image": i, "label": int(n)} for i, n in zip(images, labels, strict=True)]

    def floats(image):
        return torch.as_tensor(image)[None] / 255

    return {
        "numpy (n, H, W)": (Objects(images, labels), 1),
        "numpy (n, H, W, 1)": (Objects(images[..., None], labels), 1),
        "numpy (n, H, W, 3)": (Objects(rgb.transpose(0, 2, 3, 1), labels), 3),
        "numpy (n, 3, H, W)": (Objects((rgb, labels)), 3),
        "tensor": (Objects(tensor, numbers), 1),
        "float tensor": (Objects(tensor / 255, numbers), 1),
        "float numpy": (Objects(grey.astype(np.float64) / 255, labels.tolist()), 1),
        "bfloat16": (Objects((tensor > 127).bfloat16(), numbers), 1),
        "sparse": (Objects(tensor.to_sparse(), numbers), 1),
        "a list of Pillow": (Objects(pillow, labels), 1),
        "TensorDataset": (Objects(TensorDataset(tensor, numbers)), 1),
        "Dataset of Pillow": (Objects(Pictures(images, labels, Image.fromarray)), 1),
        "Dataset of float CHW": (Objects(Pictures(images, labels, floats)), 1),
        "Dataset of HWC": (Objects(Pictures(rgb, labels, lambda i: i.transpose(1, 2, 0))), 3),
        "Subset": (Objects(Subset(TensorDataset(tensor, numbers), range(60))), 1),
        "DataLoader": (Objects(DataLoader(TensorDataset(tensor, numbers), batch_size=7, shuffle=True)), 1),
        "DataLoader with workers": (Objects(DataLoader(TensorDataset(tensor, numbers), 7, num_workers=1)), 1),
        "a list of pairs": (Objects(list(zip(pillow, labels.tolist(), strict=True))), 1),
        "a list of tables": (Objects(tables), 1),
        "Hugging Face": (Objects(hub), 1),
    }


def test_every_kind_of_object_gives_the_same_pixels_and_labels(digits):
    images, labels = digits
    for kind, (objects, channels) in kinds(images, labels).items():
        train = objects.load().train
        expected = images[:, None] if channels == 1 else colour(images)
        if kind == "bfloat16":
            expected = (expected > 127).astype(np.uint8) * 255
        np.testing.assert_array_equal(train.images.pixels.numpy(), expected, err_msg=kind)
        np.testing.assert_array_equal(train.targets, labels, err_msg=kind)
        names = NAMES if kind == "Hugging Face" else [str(number) for number in range(10)]
        assert train.classes == tuple(names), kind


def test_files_named_by_a_table_are_read_as_from_a_folder(digits, tmp_path, data_folder):
    images, labels = digits
    for row, (image, label) in enumerate(zip(images, labels, strict=True)):
        place = tmp_path / f"d{label}"
        place.mkdir(exist_ok=True)
        Image.fromarray(image).resize((20, 40)).save(place / f"{row:02}.png")
    paths = sorted(tmp_path.rglob("*.png"))
    names = [path.parent.name for path in paths]
    folder = load_folder(tmp_path, size=(16, 16)).train
    for data in ((paths, names), fake_tables.Frame(path=paths, label=names, size=[1] * 60)):
        train = Objects(data).load(16).train
        assert torch.equal(train.images.pixels, folder.images.pixels)
        np.testing.assert_array_equal(train.read([0]).aspect, [0.5])
        assert train.classes == folder.classes
    opened = [Image.open(path) for path in paths]
    grey = Objects(opened, names).load(16).train
    assert torch.equal(grey.images.pixels, folder.images.pixels[:, :1])
    in_colour = Objects([image.convert("RGB") for image in opened], names).load(16).train
    np.testing.assert_array_equal(dataset_keys(in_colour), dataset_keys(folder))  # found again by content
    split = ["train"] * 30 + ["val"] * 10 + ["test"] * 20
    splits = Objects(fake_tables.Frame(file=paths, target=[n[:1] for n in names], split=split)).load(16)
    assert [len(splits.train), len(splits.val), len(splits.test)] == [30, 10, 20]


def test_labels_become_classes(digits):
    images, _ = digits

    def loaded(y, **options):
        train = Objects(images[: len(y)], y, **options).load().train
        return train.targets.tolist(), train.classes

    assert loaded(["cat", "ant", "cat"]) == ([1, 0, 1], ("ant", "cat"))
    assert loaded(np.array(["cat", "ant", "cat"])) == ([1, 0, 1], ("ant", "cat"))
    assert loaded([7, 2, 2]) == ([1, 0, 0], ("2", "7"))
    assert loaded([10.0, 9.0]) == ([1, 0], ("9", "10"))  # sorted as numbers
    assert loaded([True, False]) == ([1, 0], ("False", "True"))
    assert loaded([0, 2], classes=["a", "b", "c"]) == ([0, 2], ("a", "b", "c"))
    assert loaded(["c", "a"], classes=["a", "b", "c"]) == ([2, 0], ("a", "b", "c"))
    named = Pictures(images[:4], [0, 1, 2, 1])
    named.classes = ["ant", "bee", ("crane", "bird"), "crane", "crane"]
    assert Objects(named).load().train.classes == ("ant", "bee", "crane, bird", "crane (3)", "crane (4)")
    assert Objects(Subset(named, [2, 0])).load().train.targets.tolist() == [2, 0]
    named.classes = ["too", "few"]
    assert Objects(named).load().train.classes == ("0", "1", "2")


def test_splits_by_argument_and_by_mapping(digits):
    images, labels = digits
    parts = [(images[:40], labels[:40]), (images[40:50], labels[40:50]), (images[50:], labels[50:])]
    by_argument = Objects(*parts[0], val=parts[1], test=parts[2]).load()
    by_mapping = Objects({"train": parts[0], "validation": parts[1], "test": parts[2]}).load()
    for splits in (by_argument, by_mapping):
        assert [len(splits.train), len(splits.val), len(splits.test)] == [40, 10, 10]
    refused("val is given twice", Objects, {"train": parts[0], "val": parts[1]}, val=parts[1])
    refused("not 'images'", Objects, {"images": images, "labels": labels})
    refused("needs a train", Objects, {"test": parts[0]})


def test_other_sizes_are_resized_as_for_folders_and_channels_agree(digits):
    images, labels = digits
    pictures = [Image.fromarray(image).resize((30 + row % 3, 50)) for row, image in enumerate(images)]
    objects = Objects(pictures, labels)
    assert (objects.native, objects.channels) == (32, 1)  # the shorter sides are below the smallest edge
    train = objects.load().train
    assert train.images.shape == (1, 32, 32)
    np.testing.assert_allclose(train.read(range(3)).aspect, [0.6, 31 / 50, 32 / 50])
    pictures[5] = pictures[5].convert("RGB")
    mixed = Objects(pictures, labels).load().train
    assert mixed.images.shape == (3, 32, 32)
    assert torch.equal(mixed.images.pixels[0, 0], train.images.pixels[0, 0])
    layers = Objects(np.stack([images] * 5, 1), labels)
    assert layers.load(4).train.images.shape == (5, 4, 4)
    refused("2 and 5 channels", Objects([images[:5], images[:2]], [0, 1]).load)


def test_large_data_goes_into_a_file_and_memory_stays_small(digits, data_folder, messages):
    images, labels = digits
    train = Objects(images, labels).load(memory_limit=1000, progress=messages).train
    assert isinstance(train.images, MappedImages)
    assert not train.images.in_memory
    np.testing.assert_array_equal(train.read(range(60)).images[:, 0].numpy(), images)
    assert "temporary file" in messages.lines[0]
    assert set(messages.passes) == {"reading images"}
    assert not list((data_folder / "objects").iterdir())  # it has no name: gone with the process
    name = train.name(3)
    assert (
        name
        == Objects(images, labels).load().train.name(3)
        != Objects(images + 1, labels).load().train.name(3)
    )


class Stream(IterableDataset):
    def __iter__(self):
        yield np.zeros((8, 8), np.uint8), 0


def wrong_objects():
    """The words of a refusal, and what is refused."""
    images, rng = np.zeros((4, 8, 8), np.uint8), np.random.default_rng(0)
    y, floats = [0, 1, 0, 1], rng.random((4, 8, 8))
    nan = floats.copy()
    nan[2, 0, 0] = np.nan
    tensors = TensorDataset(torch.zeros(4, 1, 8, 8), torch.tensor(y))
    sampler = WeightedRandomSampler([1.0] * 4, 4)
    hub = fake_tables.HubDataset({}, picture=list(images), label=y)
    bytes_only = fake_tables.HubDataset({}, image=[{"bytes": b""}] * 4, label=y)
    split = fake_tables.Frame(path=["a"], label=[0], split=["tst"])
    in_batches, in_order = BatchSampler(sampler, 2, False), SequentialSampler(range(2))
    weighted, items = "draws images by a WeightedRandomSampler", [*zip(images, y, strict=True), (nan[2], 0)]

    def drawn(**options):
        return DataLoader(tensors, sampler=RandomSampler(tensors, **options))

    return {
        "lengths": ("arrays: 4 images but 2 labels", images, [0, 1]),
        "NaN label": ("label of image 2 is missing", images, [0.0, 1.0, float("nan"), 1.0]),
        "None label": ("label of image 1 is missing", images, ["a", None, "b", "a"]),
        "half a class": ("label of image 1 is a float (0.5)", images, [0, 0.5, 1, 1]),
        "two kinds": ("labels of two kinds, int and str", images, [0, "a", 1, 1]),
        "one-hot": ("of one-hot labels, y.argmax(1)", images, np.eye(4)),
        "one-hot items": ("label of image 0 has shape (2,)", [(images[0], np.eye(2)[0])] * 4),
        "a class too many": ("label of image 1 is 1, but there are 1 class", images, y),
        "an unknown name": ("'b', is no class", images, list("abba")),
        "twice a name": ("'a' is there twice", images, y),
        "classes as text": ("a list of text", images, y),
        "flat images": ("not (4, 64): reshape them", images.reshape(4, 64), y),
        "levels of 0 to 16": ("not from 0 to 1: divide by the highest level", 16 * floats, y),
        "normalised": ("leave normalisation out of the transform", floats * 4 - 2, y),
        "NaN pixels": ("image 2: pixels that are NaN or infinite", nan, y),
        "int64": ("pixels are int64: uint8 levels", images.astype(int), y),
        "labels missing": ("labels are missing: pass them too, sla.fit(X, y)", images),
        "nothing": ("arrays: no images", images[:0], []),
        "an empty dataset": ("list: no images", []),
        "a stream": ("Stream is a stream without length", Stream()),
        "a loader of a stream": ("Stream is a stream without length", DataLoader(Stream())),
        "a generator": ("a stream without length", (x for x in [])),
        "a sampler": (weighted, DataLoader(tensors, sampler=sampler)),
        "a batch sampler": ("draws images by a list", DataLoader(tensors, batch_sampler=[[0, 1]])),
        "a sampler in batches": (weighted, DataLoader(tensors, batch_sampler=in_batches)),
        "replacement": ("draws images with replacement", drawn(replacement=True)),
        "some images": ("draws images 3 at a time, not all 4", drawn(num_samples=3)),
        "a part in order": ("2 at a time, not all 4", DataLoader(tensors, sampler=in_order)),
        "read by workers": ("list: image 4: pixels that are NaN", DataLoader(items, num_workers=1)),
        "three in an item": ("an item is (image, label), not a tuple of 3", [(images[0], 0, 0)]),
        "no pairs": ("an item is (image, label), not a ndarray", [images[0]]),
        "a number": ("no images and labels in a int", 3),
        "labels as text": ("labels are an array", images, object()),
        "a text as image": ("no/such.png", [("no/such.png", 0), ("a.png", 1)]),
        "an object as image": ("an array or a tensor, not a object", [(object(), 0)] * 2),
        "a scalar as image": ("an image is (H, W)", [(np.float32(0), 0)] * 2),
        "columns": ("no column is called image among picture, label", hub),
        "a wrong column": ("did you mean 'picture'", hub),
        "no such key": ("did you mean 'image'", [{"image": images[0], "label": 0}]),
        "not decoded": ("column 'image' is not decoded", bytes_only),
        "an unknown split": ("did you mean 'test'", split),
        "None": ("no data", None),
        "no table of splits": ("train and perhaps val and test, not 'x'", {"x": 1}),
    }


OPTIONS = {
    "a class too many": {"classes": ["a"]},
    "an unknown name": {"classes": ["a", "c"]},
    "twice a name": {"classes": ["a", "a"]},
    "classes as text": {"classes": "ab"},
    "a wrong column": {"columns": ("pictre", "label")},
    "no such key": {"columns": ("img", "label")},
}


@pytest.mark.parametrize("kind", wrong_objects())
def test_wrong_objects_get_one_line(kind):
    words, *data = wrong_objects()[kind]
    refused(words, lambda: Objects(*data, **OPTIONS.get(kind, {})).load())


def test_a_random_transform_and_a_collate_function_are_mentioned(digits):
    images, labels = digits
    rng = np.random.default_rng(0)
    noisy = Pictures(images, labels, lambda image: image + rng.integers(0, 9, (8, 8), np.uint8))
    with pytest.warns(SLAWarning, match="image 0 is another each time it is read"):
        Objects(noisy).load()
    with pytest.warns(SLAWarning, match="collate_fn is not called"):
        Objects(DataLoader(Pictures(images, labels), collate_fn=list))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Objects(DataLoader(Pictures(images, labels))).load()
