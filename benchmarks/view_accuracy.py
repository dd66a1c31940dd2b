"""Which views are recognisable? `sla views` on digits, CIFAR-10, photographs and textures without an upside.

    python benchmarks/view_accuracy.py [name=FOLDER ...]

Digits and textures are made here; cifar10 is measured where `sla data get cifar10` has put it, and each
folder that is named besides. Writes results/view_accuracy.csv and the table in docs/views.md; rows of data
that is not there now are kept. About a minute a dataset on a free core.
"""

import sys

import numpy as np
import torch
from tables import Table

COLUMNS = ("data", "views", "num_views", "images", "accuracy", "low", "high", "verdict")
TABLE = Table("view_accuracy", "docs/views.md", COLUMNS)


def textures(count: int = 2400, size: int = 32, seed: int = 0):
    """Noise of four kinds, fine or coarse, reddish or bluish: each as likely in any rotation as upright.

    White noise is filtered by a function of the length of its frequency alone, on a torus: no direction and
    no place differs from another.
    """
    from sla.images.store import ArrayImages, Dataset

    draws, targets = np.random.default_rng(seed), np.arange(count) % 4
    along = np.fft.fftfreq(size)
    length = np.hypot(along[:, None], along)
    noise = np.fft.fft2(draws.normal(size=(count, size, size)))
    middle = np.where(targets % 2, 0.1, 0.25)[:, None, None]
    grey = np.fft.ifft2(noise * np.exp(-((length - middle) ** 2) / 0.005)).real
    grey /= grey.std((1, 2), keepdims=True)
    tint = np.where((targets < 2)[:, None], [1.0, 0.6, 0.3], [0.3, 0.6, 1.0])
    pixels = 128 + 40 * tint[:, :, None, None] * (grey[:, None] + 1)
    images = torch.from_numpy(pixels.clip(0, 255).astype(np.uint8))
    return Dataset(ArrayImages(images), targets, ("red fine", "red coarse", "blue fine", "blue coarse"))


def measure(name: str, source: str) -> list[dict[str, object]]:
    from sla.sampling.protocols import hold_out
    from sla.tasks.classifier.view_probe import CANDIDATES, fitting, probe_data, probe_views

    if name == "textures":
        found = probe_views(*hold_out(textures(), 0.25), fitting(CANDIDATES, 3))
    else:
        found = probe_data(source)
    rows = []
    for one in found:
        interval = (f"{value:.2f}" for value in one.accuracy)
        cells = (name, one.views.text, len(one.views), one.images, *interval, one.verdict)
        rows.append(dict(zip(COLUMNS, cells, strict=True)))
    return rows


def render(rows: list[dict[str, str]]) -> str:
    lines = [
        "| data | views | M | guessing % | recognised % | 95% interval | verdict |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        numbers = f"{100 / int(row['num_views']):.1f} | {float(row['accuracy']):.1f}"
        interval = f"{float(row['low']):.1f} to {float(row['high']):.1f}"
        views = f"`{row['views']}` | {row['num_views']}"
        lines.append(f"| {row['data']} | {views} | {numbers} | {interval} | {row['verdict']} |")
    return "\n".join(lines)


def main(*named: str) -> None:
    from sla.datasets.load import find

    kept: dict[str, list] = {}
    for row in TABLE.read():
        kept.setdefault(row["data"], []).append(row)
    sources = {"digits": "digits", "textures": ""} | ({"cifar10": "cifar10"} if find("cifar10") else {})
    sources |= dict(text.split("=", 1) for text in named)
    for name, source in sources.items():
        kept[name] = measure(name, source)
        print(name, *(f"{row['views']} {row['accuracy']}" for row in kept[name]), sep="  ")
    TABLE.write(row for name in sorted(kept) for row in kept[name])
    TABLE.show(render)


if __name__ == "__main__":
    main(*sys.argv[1:])
