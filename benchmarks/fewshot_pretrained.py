"""Which head and which views for a pretrained backbone and few pictures? EfficientNet-Lite0 on new classes.

    OMP_NUM_THREADS=1 nice python benchmarks/fewshot_pretrained.py DATA

DATA is a folder of photographs by class, such as the training part of CUB-200-2011. Judged on the classes
that the class split keeps for validation, `IMAGES` of each; its test classes are not looked at. Every image
is embedded once in four rotations: other views are parts of these. All heads answer the same episodes.
Writes results/fewshot_pretrained.csv and the table in docs/fewshot.md. About six minutes on one core, most
of them the embedding of 32 classes.
"""

import sys
import time
from itertools import product
from typing import Any

from tables import Table, with_ends

from sla.progress import Progress

BACKBONE, WAY, SHOTS, EPISODES, QUERY, IMAGES = "efficientnet_lite0", 5, (1, 5), 500, 15, 20
VIEWS = {"none": [0], "rot2": [0, 2], "rot4": [0, 1, 2, 3]}  # and their places among the four rotations
REFERENCE = ("ridge", "none")
INTERVALS = ("accuracy", "low", "high", "gain", "gain_low", "gain_high")
COLUMNS = ("head", "views", "shot", *INTERVALS, "images", "commit")
TABLE = Table("fewshot_pretrained", "docs/fewshot.md", COLUMNS)


def load_val(data: str, size: int) -> Any:
    """Up to IMAGES images of each validation class."""
    from sla.datasets.class_splits import load_class_splits
    from sla.sampling.protocols import selection_set

    val = load_class_splits(data, WAY, size=size, progress=Shown()).val
    if val is None:
        sys.exit(f"{data} has too few classes to keep some for validation")
    return selection_set(val, IMAGES)


class Shown(Progress):
    def advance(self, what: str, done: int, total: int | None) -> None:
        print(f"\r{what}: {done:,} of {total:,}", end="\n" if done == total else "", flush=True)


def measure(data: str) -> list[dict[str, object]]:
    """A row for each head, views and shot."""
    from sla.runs.result import find_commit
    from sla.sampling.episodes import Episodes
    from sla.tasks.fewshot.evaluate import embed, episode_accuracies, episode_interval, paired_interval
    from sla.tasks.fewshot.heads import HEADS
    from sla.tasks.fewshot.run import Pretrained

    commit, whole = find_commit(), Pretrained(BACKBONE, "ridge", "rot4").model
    val = load_val(data, whole.preprocessing.stored_size)
    start = time.process_time()
    embedded = embed(whole, val, whole.preprocessing.eval_pipeline(), progress=Shown())
    print(f"{len(val)} images of {val.num_classes} classes: {time.process_time() - start:.0f} s of one core")
    found = {}
    for head, views, shot in product(HEADS, VIEWS, SHOTS):
        model = Pretrained(BACKBONE, head, views).model
        episodes = Episodes(val, WAY, shot, QUERY)
        by_kind = episode_accuracies(model, embedded[:, VIEWS[views]], episodes, EPISODES)
        found[head, views, shot] = by_kind[model.inferences[-1]]  # what `sla fewshot predict` answers by
        print(head, views, shot, f"{found[head, views, shot].mean():.2f}%", flush=True)
    rows = []
    for key, accuracies in found.items():
        numbers = *episode_interval(accuracies), *paired_interval(accuracies, found[*REFERENCE, key[2]])
        cells = (*key, *(f"{number:.2f}" for number in numbers), len(val), commit)
        rows.append(dict(zip(TABLE.columns, cells, strict=True)))
    return rows


def render(rows: list[dict[str, str]]) -> str:
    """Accuracy and the difference to the reference on the same episodes; then which rows are better."""
    from sla.stats import Interval

    reference = ", ".join(REFERENCE)
    titles = [f"{shot}-shot % | against {reference}" for shot in SHOTS]
    lines = [f"| head | views | {' | '.join(titles)} |", "|---|---|" + "---|---|" * len(SHOTS)]
    by_key = {(row["head"], row["views"], row["shot"]): row for row in rows}
    better = {shot: [] for shot in SHOTS}
    for head, views in dict.fromkeys(key[:2] for key in by_key):
        cells = [head, views]
        for shot in SHOTS:
            row = by_key[head, views, str(shot)]
            gain = Interval(*(float(row[key]) for key in INTERVALS[3:]))
            shown = "" if (head, views) == REFERENCE else with_ends(gain, 2)
            cells += [f"{float(row['accuracy']):.1f}", shown]
            better[shot] += [f"{head} with views {views}"] if gain.sign > 0 else []
        lines.append(f"| {' | '.join(cells)} |")
    said = [f"{', '.join(some) or 'nothing'} at {shot}-shot" for shot, some in better.items()]
    return "\n".join([*lines, "", f"Better than the default (interval above 0): {'; '.join(said)}."])


if __name__ == "__main__":
    TABLE.write(measure(*sys.argv[1:]))
    TABLE.show(render)
