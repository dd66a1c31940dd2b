"""Small datasets made up for tests: pictures of one colour, digits as files, CIFAR and MNIST."""

import gzip
import pickle
import struct

import numpy as np
from PIL import Image

CIFAR10 = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


def picture(path, colour, size=8):
    """A square of one colour, or of a grey where a number is given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = (colour,) * 3 if isinstance(colour, int) else colour
    kind = "JPEG" if path.suffix.lower() in (".jpg", ".jpeg") else "PNG"
    Image.new("RGB", (size, size), colour).save(path, kind)
    return path


def digit_files(data, places, folder, name="{label}/{place}.png"):
    """Images of a grey dataset as PNG files; `name` may use the image's place and label."""
    for place in places:
        path = folder / name.format(place=place, label=data.classes[data.targets[place]])
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(data.read([place]).images[0, 0].numpy()).save(path)
    return folder


def cifar_pixels(count, seed):
    return np.random.RandomState(seed).randint(0, 256, (count, 3072)).astype(np.uint8)


def cifar10_records(count):
    """{file: uint8 (count, 3073)}, a label and the pixels in a row."""
    labels = {name: (np.arange(count) + i) % 10 for i, name in enumerate(CIFAR10)}
    return {
        name: np.concatenate([labels[name][:, None].astype(np.uint8), cifar_pixels(count, i)], 1)
        for i, name in enumerate(CIFAR10)
    }


def cifar10_files(folder, count=3, python=False):
    """CIFAR-10's six files, binary or pickled; {name: (labels, pixels)} as they were written."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {name: (records[:, 0], records[:, 1:]) for name, records in cifar10_records(count).items()}
    for name, (labels, pixels) in made.items():
        batch = {b"data": pixels, b"labels": labels.tolist(), b"filenames": [b"x.png"] * count}
        if python:
            (folder / name).write_bytes(pickle.dumps(batch, 2))
        else:
            (folder / f"{name}.bin").write_bytes(cifar10_records(count)[name].tobytes())
    return made


def idx_bytes(array):
    return (
        struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()
    )


def idx_file(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(idx_bytes(array)) if path.suffix == ".gz" else idx_bytes(array))


def mnist_files(folder, ending="-idx{}-ubyte", counts=(7, 4), shape=(2, 3), more_labels=0):
    """MNIST's four files: pixels count on from 0, image i is of class i."""
    for prefix, count in zip(("train", "t10k"), counts, strict=True):
        pixels = np.arange(count * shape[0] * shape[1]).reshape(count, *shape)
        idx_file(folder / f"{prefix}-images{ending.format(3)}", pixels)
        idx_file(folder / f"{prefix}-labels{ending.format(1)}", np.arange(count + more_labels))
