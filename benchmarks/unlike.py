"""Are pictures of other things marked as unlike the training pictures, and how often are others marked too?

    nice python benchmarks/unlike.py DATA OUT NAME=FOLDER ...

DATA is a folder with train/ and test/ of photographs, such as the first 20 classes of CUB-200-2011; the run
goes to OUT (one that is there is kept). Each NAME=FOLDER has pictures of something else, such as other
classes of CUB or Flowers-102; CIFAR-10 and the digits are found by their names. For comparison: a threshold
of the largest probability, calibrated on the same pictures at the same rate. The distance was chosen on
Flowers-102 and other classes of CUB, with CIFAR-100, mini-ImageNet and the digits as unlike. Writes
results/unlike.csv and the table in docs/labels.md. About fifteen minutes on two cores, most of them training.
"""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tables import Printed, Table

MOST, EPOCHS, CONFIDENT = 300, 10, 0.9
MODELS = {"features": "quick", "last": "trained"}
COUNTS = ("marked", "by_confidence", "confident")
COLUMNS = ("model", "data", "images", *COUNTS, "rate", "calibrated_on", "commit")
TABLE = Table("unlike", "docs/labels.md", COLUMNS)


def some_of(dataset: Any) -> Any:
    """At most MOST images, drawn at random."""
    return dataset.subset(np.sort(np.random.default_rng(0).permutation(len(dataset))[:MOST]))


def least_confidence(run: Any) -> float:
    """The confidence that all but the rule's rate of the pictures that calibrated it have."""
    from sla.tasks.classifier.features import read_cross_validated

    inference, rule = run.model.method.headline, run.own_unlike_rule
    kept = read_cross_validated(run.folder) if run.checkpoint == "features" else run.kept_scores("val")
    found = (kept.logits[inference].double() / run.temperatures[inference]).softmax(1).amax(1).sort().values
    return found[len(found) - math.ceil(round((len(found) + 1) * (1 - rule.rate), 6))].item()


def measure(run: Any, data: dict[str, Any], commit: str | None) -> list[dict[str, object]]:
    """A row for each dataset."""
    from sla.tasks.classifier.evaluation import infer

    rows, rule, inference = [], run.own_unlike_rule, run.model.method.headline
    least = least_confidence(run)
    for name, dataset in data.items():
        asked = {"inferences": (inference,), "means": rule.means, "fast": True, "batch_size": 32}
        outputs = infer(run.model, dataset, run.pipeline, **asked)
        best = (outputs.logits[inference].double() / run.temperatures[inference]).softmax(1).amax(1)
        counts = rule.marks(outputs.distances), best < least, best >= CONFIDENT
        cells = (MODELS[run.checkpoint], name, len(dataset), *(int(one.sum()) for one in counts))
        rows.append(dict(zip(COLUMNS, (*cells, f"{rule.rate:.4f}", rule.images, commit), strict=True)))
        print(*rows[-1].values(), flush=True)
    return rows


def render(rows: list[dict[str, str]]) -> str:
    """The shares of marked pictures with their intervals."""
    from sla.stats import share

    lines = [
        "| model | pictures | images | marked % | marked by low confidence % | at least 90% confident % |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        count, shown = int(row["images"]), []
        for key in COUNTS:
            found = share(int(row[key]), count)
            shown.append(f"{found.mean:.1f} ({found.low:.0f} to {found.high:.0f})")
        lines.append(f"| {row['model']} | {row['data']} | {count} | {' | '.join(shown)} |")
    rates = [
        f"{row['model']} {100 * float(row['rate']):.1f}% by {row['calibrated_on']} pictures" for row in rows
    ]
    return "\n".join([*lines, "", f"Calibrated rate of false alarms: {', '.join(dict.fromkeys(rates))}."])


def main(data: str, out: str, *others: str) -> None:
    import sla
    from sla.datasets.load import load
    from sla.runs.result import find_commit
    from sla.tasks.classifier.run import Run

    folder, commit = Path(out), find_commit()
    if not (folder / "result.json").exists():
        settings = {"run__epochs": EPOCHS, "run__compile": False}
        sla.fit(data, folder, resume=(folder / "config.yaml").exists(), progress=Printed(), **settings)
    size = Run(folder).config.data.stored_size
    given = dict(word.split("=", 1) for word in others)
    sets = {"test pictures of the run": load(data, size=size, memory_limit=0).test}
    sets |= {name: some_of(load(place, size=size, memory_limit=0).train) for name, place in given.items()}
    sets |= {name: some_of(load(name).test) for name in ("cifar10", "digits")}
    rows = [row for model in MODELS for row in measure(Run(folder, model), sets, commit)]
    TABLE.write(rows)
    TABLE.show(render)


if __name__ == "__main__":
    main(*sys.argv[1:])
