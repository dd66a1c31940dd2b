"""Every official layout, made up small: a picture has its class's colour, so its label can be seen in it."""

import csv
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from made_data import cifar10_files, cifar_pixels, idx_file, mnist_files
from made_data import picture as paint
from refusals import refused
from sla.datasets.catalogue import CATALOGUE
from sla.datasets.formats import Arrays, Listing
from sla.datasets.formats.idx import read_idx, read_mnist
from sla.datasets.formats.lists import read_cub, read_dogs, read_inaturalist, read_mit67
from sla.datasets.formats.mat import read_mat
from sla.datasets.formats.wordnet import class_lists, read_imagenet
from sla.datasets.layouts import find_layout
from sla.errors import MissingExtraError
from sla.images.decode import open_rgb

WNIDS = ("n01440764", "n01443537", "n01484850")
TEN = tuple("0123456789")


def read(name, folder):
    """Read by the layout that the folder has."""
    found = find_layout(CATALOGUE[name], [folder])
    assert found is not None
    return found[1].read(found[0])


def picture(path, number):
    paint(path, 20 + 30 * number)


def numbers_seen(part):
    """Which class each picture was painted for, from its pixels."""
    means = [np.asarray(open_rgb(path)).mean() for path in part.paths]
    return [round((mean - 20) / 30) for mean in means]


def rows(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


# CIFAR


def test_cifar10_binary_and_python_agree_with_what_was_written(tmp_path):
    for python, folder in ((False, "bin"), (True, "py")):
        made = cifar10_files(tmp_path / folder, python=python)
        parts = read("cifar10", tmp_path / folder)
        assert parts["train"].pixels.shape == (15, 3, 32, 32)
        assert parts["test"].targets.tolist() == made["test_batch"][0].tolist()
        labels, pixels = made["data_batch_2"]
        assert parts["train"].targets[3:6].tolist() == labels.tolist()
        # channel, row, column of the record: red first, row by row
        assert parts["train"].pixels[4, 2, 5, 7] == pixels[1, 2 * 1024 + 5 * 32 + 7]
        assert parts["train"].classes[:2] == ("airplane", "automobile")


def cifar100(folder, python):
    folder.mkdir()
    fine, coarse = [f"fine{i:02}" for i in range(100)], [f"coarse{i:02}" for i in range(20)]
    labels = np.random.RandomState(0).permutation(100)
    for split in ("train", "test"):
        pixels, head = cifar_pixels(100, len(split)), np.stack([labels % 20, labels], 1).astype(np.uint8)
        held = {b"data": pixels, b"fine_labels": labels.tolist(), b"coarse_labels": (labels % 20).tolist()}
        binary = np.concatenate([head, pixels], axis=1).tobytes()
        name, content = (split, pickle.dumps(held, 2)) if python else (f"{split}.bin", binary)
        (folder / name).write_bytes(content)
    if python:
        names = {b"fine_label_names": fine, b"coarse_label_names": coarse}
        (folder / "meta").write_bytes(pickle.dumps(names, 2))
    else:
        rows(folder / "fine_label_names.txt", *fine)
        rows(folder / "coarse_label_names.txt", *coarse)
    return labels


@pytest.mark.parametrize("python", [False, True], ids=["binary", "python"])
def test_cifar100_has_fine_labels_and_knows_the_coarse(tmp_path, python):
    labels = cifar100(tmp_path / "c", python)
    parts = read("cifar100", tmp_path / "c")
    assert parts["train"].targets.tolist() == labels.tolist()
    assert parts["train"].pixels[9].reshape(-1).tolist() == cifar_pixels(100, 5)[9].tolist()
    assert parts["test"].classes[42] == "fine42"
    assert parts["test"].groups[42] == "coarse02"


def test_wrong_cifar_files(tmp_path):
    cifar10_files(tmp_path)
    whole = (tmp_path / "data_batch_3.bin").read_bytes()
    (tmp_path / "data_batch_3.bin").write_bytes(whole[:-1])
    refused(r"data_batch_3\.bin: 9,218 bytes, not whole records of 3,073", read, "cifar10", tmp_path)
    (tmp_path / "data_batch_3.bin").write_bytes(b"\x0a" + whole[1:])
    refused("data_batch_3.bin: labels run from 3 to 10, but there are 10 classes", read, "cifar10", tmp_path)
    (tmp_path / "data_batch_3.bin").unlink()
    refused(r"data_batch_3\.bin: no such file", read, "cifar10", tmp_path)


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        ({b"data": np.zeros((2, 3072), np.uint8)}, "has no 'labels'"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, "2 images but 1 labels"),
        ({b"data": np.zeros((2, 9), np.uint8), b"labels": [1, 2]}, "not uint8"),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [-1]}, "labels run from -1"),
        ([1, 2], "has no 'data'"),
    ],
)
def test_wrong_cifar_pickles(tmp_path, batch, reason):
    for name in ("data_batch_1", "test_batch"):
        (tmp_path / name).write_bytes(pickle.dumps(batch, 2))
    refused(rf"data_batch_1: .*{reason}", read, "cifar10", tmp_path)


# idx


@pytest.mark.parametrize("ending", ["-idx{}-ubyte", "-idx{}-ubyte.gz", ".idx{}-ubyte"])
def test_mnist(tmp_path, ending):
    mnist_files(tmp_path, ending)
    parts = read_mnist(tmp_path, TEN)
    assert parts["train"].pixels.shape == (7, 1, 2, 3)
    assert parts["train"].pixels[5, 0].tolist() == [[30, 31, 32], [33, 34, 35]]
    assert parts["test"].targets.tolist() == [0, 1, 2, 3]


def test_wrong_idx_files(tmp_path):
    idx_file(tmp_path / "a", np.zeros((5, 4)))
    (tmp_path / "cut").write_bytes((tmp_path / "a").read_bytes()[:-3])
    refused(r"cut: says \(5, 4\) but holds 17 bytes", read_idx, tmp_path / "cut")
    (tmp_path / "text").write_text("P5 not an idx file")
    refused("text: not an idx file", read_idx, tmp_path / "text")
    idx_file(tmp_path / "z.gz", np.zeros((5, 4)))
    (tmp_path / "z.gz").write_bytes((tmp_path / "z.gz").read_bytes()[:-9])
    refused(r"z\.gz: truncated", read_idx, tmp_path / "z.gz")
    mnist_files(tmp_path, more_labels=1)
    refused("train-labels-idx1-ubyte: 8 labels for the 7 images", read_mnist, tmp_path, TEN)


def test_digits_are_scikit_learns_byte_for_byte():
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    parts = read("digits", Path(CATALOGUE["digits"].installed[0]))
    expected = {tuple(np.floor(image * 255 / 16 + 0.5).astype(int).ravel()) for image in digits.images}
    pixels = np.concatenate([parts["train"].pixels, parts["test"].pixels]).reshape(-1, 64)
    assert {tuple(image) for image in pixels.tolist()} == expected
    assert len(pixels) == len(digits.images) == 1797
    assert np.bincount(parts["test"].targets).tolist() == [36] * 10
    # the original order is kept, so each part is a subsequence with its labels
    where = {
        tuple(image): i
        for i, image in enumerate(np.floor(digits.images * 255 / 16 + 0.5).astype(int).reshape(-1, 64))
    }
    for part in parts.values():
        places = [where[tuple(image)] for image in part.pixels.reshape(-1, 64).tolist()]
        assert places == sorted(places)
        assert digits.target[places].tolist() == part.targets.tolist()


# MATLAB


@pytest.mark.parametrize("compressed", [False, True])
def test_mat_files_as_scipy_writes_them(tmp_path, compressed):
    names = np.array(["a/b.jpg", "n02085620-Chihuahua/n02085620_5927.jpg", "é"], dtype=object).reshape(-1, 1)
    table = np.zeros(2, dtype=[("ILSVRC2012_ID", "O"), ("WNID", "O")])
    table[0], table[1] = (1, "n01440764"), (2, "n01443537")
    held = {
        "file_list": names,
        "labels": np.array([[1], [2], [120]]),
        "m": np.arange(6.0).reshape(2, 3),
        "synsets": table,
    }
    scipy.io.savemat(tmp_path / "a.mat", held, do_compression=compressed)
    found = read_mat(tmp_path / "a.mat")
    assert found["file_list"] == ["a/b.jpg", "n02085620-Chihuahua/n02085620_5927.jpg", "é"]
    assert found["labels"] == [[1], [2], [120]]
    assert found["m"] == [[0, 1, 2], [3, 4, 5]]
    assert [row["WNID"] for row in found["synsets"]] == ["n01440764", "n01443537"]
    assert [row["ILSVRC2012_ID"] for row in found["synsets"]] == [[[1]], [[2]]]


def test_damaged_mat_files(tmp_path):
    scipy.io.savemat(tmp_path / "a.mat", {"x": np.arange(500.0)}, do_compression=True)
    whole = (tmp_path / "a.mat").read_bytes()
    (tmp_path / "cut.mat").write_bytes(whole[: len(whole) // 2])
    refused(r"cut\.mat: a damaged MATLAB file", read_mat, tmp_path / "cut.mat")
    (tmp_path / "text.mat").write_text("no")
    refused(r"text\.mat: a damaged MATLAB file, or none", read_mat, tmp_path / "text.mat")
    refused(r"none\.mat: no such file", read_mat, tmp_path / "none.mat")
    with (tmp_path / "large.mat").open("wb") as file:
        file.truncate((16 << 20) + 1)
    refused(r"large\.mat: a MATLAB file of more than 16 MiB", read_mat, tmp_path / "large.mat")


@pytest.mark.parametrize("place", [130, 208, 240, 305])
def test_a_damaged_mat_file_is_one_line_even_where_scipy_crashes(tmp_path, place):
    names = np.array(["a/b.jpg", "c/d.jpg"], dtype=object)
    scipy.io.savemat(tmp_path / "a.mat", {"file_list": names, "labels": np.arange(2)})
    data = bytearray((tmp_path / "a.mat").read_bytes())
    data[place] ^= 1 if place == 208 else 0x55
    (tmp_path / "a.mat").write_bytes(data)
    refused(r"a\.mat: a damaged MATLAB file", read_mat, tmp_path / "a.mat")


def test_a_mat_file_without_scipy(tmp_path, monkeypatch):
    monkeypatch.setattr("sla.datasets.formats.mat.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"a\.mat: reading a MATLAB file .*install .*\[mat\]"):
        read_mat(tmp_path / "a.mat")


# lists


def cub(root):
    names = ["001.Albatross/a_1.jpg", "002.Auklet/b_1.jpg", "001.Albatross/a_2.jpg", "002.Auklet/b_2.jpg"]
    for name in names:
        picture(root / "images" / name, int(name[:3]) - 1)
    rows(root / "images.txt", *(f"{i} {name}" for i, name in enumerate(names, 1)))
    rows(root / "image_class_labels.txt", "1 1", "2 2", "3 1", "4 2")
    rows(root / "train_test_split.txt", "1 0", "2 1", "3 1", "4 1")
    rows(root / "classes.txt", "1 001.Albatross", "2 002.Auklet")


def test_cub(tmp_path):
    cub(tmp_path)
    parts = read_cub(tmp_path)
    assert numbers_seen(parts["train"]) == parts["train"].targets.tolist() == [1, 0, 1]
    assert numbers_seen(parts["test"]) == parts["test"].targets.tolist() == [0]
    assert parts["train"].classes == ("001.Albatross", "002.Auklet")


@pytest.mark.parametrize(
    ("file", "lines", "reason"),
    [
        ("image_class_labels.txt", ["1 1", "2 2"], r"image_class_labels\.txt: 2 images, not the 4"),
        ("image_class_labels.txt", ["1 1", "2 2", "3 1", "4 9"], r"class '9' is not in classes\.txt"),
        ("train_test_split.txt", ["1 0", "2 1", "3 1", "4 x"], "'x' is neither 1"),
        ("images.txt", ["1 a", "2", "3 c", "4 d"], r"images\.txt: '2' is not a number and a value"),
        ("images.txt", [f"{i} 001.Albatross/none.jpg" for i in range(1, 5)], "no such file below"),
        ("images.txt", [f"{i} ../../etc/passwd" for i in range(1, 5)], "lies outside"),
        ("images.txt", [f"{i} /etc/passwd" for i in range(1, 5)], "lies outside"),
    ],
)
def test_wrong_cub_lists(tmp_path, file, lines, reason):
    cub(tmp_path)
    rows(tmp_path / file, *lines)
    refused(reason, read_cub, tmp_path)


def dogs(root):
    lists = {
        "train": [("n02085620-Chihuahua", 1), ("n02085782-spaniel", 2)],
        "test": [("n02085782-spaniel", 2)],
    }
    for part, entries in lists.items():
        names = [f"{breed}/{part}_{i}.jpg" for i, (breed, _) in enumerate(entries)]
        for name, (_, label) in zip(names, entries, strict=True):
            picture(root / "Images" / name, label - 1)
        held = {
            "file_list": np.array(names, dtype=object).reshape(-1, 1),
            "annotation_list": np.array([name[:-4] for name in names], dtype=object).reshape(-1, 1),
            "labels": np.array([[float(label)] for _, label in entries]),
        }
        scipy.io.savemat(root / f"{part}_list.mat", held)


def test_stanford_dogs(tmp_path):
    dogs(tmp_path)
    parts = read_dogs(tmp_path)
    assert numbers_seen(parts["train"]) == parts["train"].targets.tolist() == [0, 1]
    assert numbers_seen(parts["test"]) == parts["test"].targets.tolist() == [1]
    assert parts["test"].classes == ("n02085620-Chihuahua", "n02085782-spaniel")
    scipy.io.savemat(tmp_path / "test_list.mat", {"labels": np.array([[1.0]])})
    refused(r"test_list\.mat: needs 'file_list' and 'labels'", read_dogs, tmp_path)


def mit67(root):
    for number, name in enumerate(("airport_inside", "bar")):
        for i in range(3):
            picture(root / "Images" / name / f"{name}_{i}.jpg", number)
    rows(root / "TrainImages.txt", "bar/bar_0.jpg", "airport_inside/airport_inside_1.jpg", "bar/bar_2.jpg")
    rows(root / "TestImages.txt", "airport_inside/airport_inside_0.jpg")


def test_mit67(tmp_path):
    mit67(tmp_path)
    parts = read_mit67(tmp_path)
    assert numbers_seen(parts["train"]) == parts["train"].targets.tolist() == [1, 0, 1]
    assert numbers_seen(parts["test"]) == parts["test"].targets.tolist() == [0]
    rows(tmp_path / "TestImages.txt", "casino/casino_0.jpg")
    refused(r"TestImages\.txt: the class of 'casino/casino_0\.jpg'", read_mit67, tmp_path)
    (tmp_path / "TestImages.txt").write_bytes(b"\xff\xd8\xff\xe0 a picture")
    refused(r"TestImages\.txt: not a text file", read_mit67, tmp_path)


def inaturalist(root):
    categories = [{"id": i, "name": f"species {i}", "supercategory": "Aves"} for i in range(3)]
    for part, entries in (("train", [(10, 2), (11, 0), (12, 1)]), ("val", [(20, 1)])):
        images = [{"id": key, "file_name": f"train_val2018/Aves/{label}/{key}.jpg"} for key, label in entries]
        for image, (_, label) in zip(images, entries, strict=True):
            picture(root / str(image["file_name"]), label)
        notes = [{"id": i, "image_id": key, "category_id": label} for i, (key, label) in enumerate(entries)]
        held = {"images": images, "annotations": notes[::-1], "categories": categories, "info": {}}
        (root / f"{part}2018.json").write_text(json.dumps(held))


def test_inaturalist(tmp_path):
    inaturalist(tmp_path)
    parts = read_inaturalist(tmp_path)
    assert numbers_seen(parts["train"]) == parts["train"].targets.tolist() == [2, 0, 1]
    assert numbers_seen(parts["test"]) == parts["test"].targets.tolist() == [1]
    assert parts["train"].classes[2] == "species 2"
    held = json.loads((tmp_path / "val2018.json").read_text())
    held["annotations"][0]["category_id"] = 77
    (tmp_path / "val2018.json").write_text(json.dumps(held))
    refused(r"val2018\.json: .* has no category of the list", read_inaturalist, tmp_path)
    for text in (
        '{"images": [',
        '{"images": []}',
        '{"images": [{"id": 1}], "annotations": [], "categories": []}',
    ):
        (tmp_path / "val2018.json").write_text(text)
        refused(r"val2018\.json: (not JSON|needs a list)", read_inaturalist, tmp_path)


# WordNet's


def tiny(root):
    for number, name in enumerate(WNIDS):
        for i in range(2):
            picture(root / "train" / name / "images" / f"{name}_{i}.JPEG", number)
        rows(root / "train" / name / f"{name}_boxes.txt", "x 0 0 1 1")
        picture(root / "val" / "images" / f"val_{number}.JPEG", number)
        picture(root / "test" / "images" / f"test_{number}.JPEG", number)
    order = (2, 0, 1)
    rows(root / "val" / "val_annotations.txt", *(f"val_{n}.JPEG\t{WNIDS[n]}\t0\t32\t44\t62" for n in order))
    rows(root / "wnids.txt", *reversed(WNIDS))


def test_tiny_imagenet(tmp_path):
    tiny(tmp_path)
    parts = read("tiny-imagenet", tmp_path)
    assert numbers_seen(parts["train"]) == parts["train"].targets.tolist() == [0, 0, 1, 1, 2, 2]
    assert numbers_seen(parts["test"]) == parts["test"].targets.tolist() == [2, 0, 1]
    rows(tmp_path / "val" / "val_annotations.txt", "val_0.JPEG\tn99999999\t0\t0\t1\t1")
    refused(r"val_annotations\.txt: 'val_0\.JPEG' is of class 'n99999999'", read, "tiny-imagenet", tmp_path)


@pytest.mark.parametrize("labels", ["folders", "solution", "annotations", "devkit", "none"])
def test_imagenet(tmp_path, labels):
    folder = tmp_path / "ILSVRC" / "Data" / "CLS-LOC"
    order = [2, 0, 1]
    names = [f"ILSVRC2012_val_{i:08}" for i in range(1, 4)]
    for number, wnid in enumerate(WNIDS):
        picture(folder / "train" / wnid / f"{wnid}_7.JPEG", number)
    for name, number in zip(names, order, strict=True):
        inner = WNIDS[number] if labels == "folders" else "."
        picture(folder / "val" / inner / f"{name}.JPEG", number)
    if labels == "solution":
        lines = [f"{name},{WNIDS[n]} 1 2 3 4 " for name, n in zip(names, order, strict=True)]
        rows(tmp_path / "LOC_val_solution.csv", "ImageId,PredictionString", *lines)
    if labels == "annotations":
        for name, n in zip(names, order, strict=True):
            xml = f"<annotation><object><name>{WNIDS[n]}</name></object></annotation>"
            rows(tmp_path / "ILSVRC" / "Annotations" / "CLS-LOC" / "val" / f"{name}.xml", xml)
    if labels == "devkit":
        table = np.zeros(3, dtype=[("ILSVRC2012_ID", "O"), ("WNID", "O")])
        for place, number in enumerate((1, 2, 0)):  # the devkit numbers classes in its own order
            table[place] = (place + 1, WNIDS[number])
        kit = folder / "ILSVRC2012_devkit_t12" / "data"
        rows(kit / "ILSVRC2012_validation_ground_truth.txt", 2, 3, 1)
        scipy.io.savemat(kit / "meta.mat", {"synsets": table})
    if labels == "none":
        refused("neither class folders nor labels beside it", read_imagenet, folder)
        return
    parts = read_imagenet(folder)
    assert parts["train"].classes == parts["test"].classes == WNIDS
    assert numbers_seen(parts["test"]) == parts["test"].targets.tolist()
    assert sorted(parts["test"].targets.tolist()) == [0, 1, 2]


def mini_classes():
    return {split: names[:2] for split, names in class_lists("mini-imagenet").items()}


def test_mini_imagenet_csv(tmp_path):
    for split, names in mini_classes().items():
        with (tmp_path / f"{split}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["filename", "label"])
            for number, name in reversed(list(enumerate(names))):
                writer.writerow([f"{name}0000001.jpg", name])
                picture(tmp_path / "images" / f"{name}0000001.jpg", number)
    parts = read("mini-imagenet", tmp_path)
    assert list(parts) == ["train", "val", "test"]
    for split, names in mini_classes().items():
        part = parts[split]
        assert isinstance(part, Listing)
        assert part.classes == tuple(names)
        assert numbers_seen(part) == part.targets.tolist() == [1, 0]
    (tmp_path / "val.csv").write_bytes((tmp_path / "train.csv").read_bytes())
    refused(r"val\.csv: class .* is not one of mini-ImageNet's val classes", read, "mini-imagenet", tmp_path)


def test_mini_imagenet_pickles_of_both_kinds(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    pixels = np.random.RandomState(0).randint(0, 256, (4, 84, 84, 3)).astype(np.uint8)
    for split, names in mini_classes().items():
        cached = {"image_data": pixels, "class_dict": {names[1]: [0, 3], names[0]: [1, 2]}}
        (tmp_path / "a" / f"mini-imagenet-cache-{split}.pkl").write_bytes(pickle.dumps(cached, 2))
        first = {"train": 0, "val": 64, "test": 80}[split]
        held = {"data": pixels, "labels": [first + 5, first, first, first + 5]}
        name = "train_phase_train" if split == "train" else split
        (tmp_path / "b" / f"miniImageNet_category_split_{name}.pickle").write_bytes(pickle.dumps(held, 4))
    for folder in ("a", "b"):
        parts = read("mini-imagenet", tmp_path / folder)
        for split in ("train", "val", "test"):
            part = parts[split]
            assert isinstance(part, Arrays)
            assert part.targets.tolist() == [1, 0, 0, 1]
            assert part.pixels[2, 1, 30, 40] == pixels[2, 30, 40, 1]
    (tmp_path / "a" / "mini-imagenet-cache-test.pkl").unlink()
    refused(r"no mini-imagenet-cache-test\.pkl", read, "mini-imagenet", tmp_path / "a")


def test_few_shot_class_lists_are_whole_and_disjoint():
    for name, sizes in (("cifar-fs", [64, 16, 20]), ("fc100", [12, 4, 4]), ("mini-imagenet", [64, 16, 20])):
        lists = class_lists(name)
        assert [len(lists[split]) for split in ("train", "val", "test")] == sizes
        assert len({label for names in lists.values() for label in names}) == sum(sizes)
