"""What the policy that ships, `policy(own)`, gains in training, beside AutoAugment and TrivialAugment.

    SLA_DATA=FOLDER OMP_NUM_THREADS=1 nice python benchmarks/own_policy.py

CIFAR-10 with 500 images per class, ResNet-8, the baseline, three seeds; per seed every arm has the
same images, order and first weights. Judged by the last step, on the 5,000 images that every run holds out
and the policy's search held out too; test images are not read. Rows of results/own_policy.csv that are there
are kept. Started several times, as on two cores, each process takes rows that no other has. Writes the table
in docs/augmentation.md. About three minutes a row on a free core, 12 rows.
"""

import sys
import tempfile
from typing import Any

from tables import Table, with_ends

from sla.progress import Progress

PLAIN, OWN = "crop(4), flip", "policy(own), crop(4), flip"
ARMS = (PLAIN, OWN, "autoaugment, crop(4), flip", "trivialaugment, crop(4), flip")
SEEDS, STEPS, BATCH, PER_CLASS = (0, 1, 2), 2500, 64, 500
SHOWN = ("held_out", "train_accuracy")
ABOUT = f"""\
The effect on training: CIFAR-10 with {PER_CLASS} images per class, ResNet-8, the baseline,
{STEPS:,} steps of {BATCH} images, means over seeds. For each seed, all rows share the same images, order
and initial weights; differences are paired, with 95% intervals. Evaluated on the 5,000 images that the
search held out and never used; test images were not read. Made by `python benchmarks/own_policy.py` from
[results/own_policy.csv](../results/own_policy.csv)."""
COLUMNS = ("augment", "seed", "held_out", "train_accuracy", "train_loss", "seconds", "commit")
TABLE = Table("own_policy", "docs/augmentation.md", COLUMNS)


def run_arm(augment: str, seed: int, splits: Any) -> dict[str, object]:
    """Train one arm on one seed; its row. Training images are judged without augmentation."""
    from sla.session import fit

    settings = {"data__per_class": PER_CLASS, "data__hold_out": 0.1, "data__hold_out_seed": 0}
    settings |= {"model__backbone": "resnet8", "method__name": "baseline", "augment": augment}
    settings |= {"run__seed": seed, "run__batch_size": BATCH, "run__iterations": STEPS}
    settings |= {"run__compile": False, "run__evaluations": 1}
    with tempfile.TemporaryDirectory() as folder:
        run = fit(splits, f"{folder}/run", progress=Shown(), **settings)
    learnt = run.evaluate(run.splits.train).scores()["single"]
    return {
        "augment": augment,
        "seed": seed,
        "held_out": f"{run.result['accuracies']['last']['val']['single']['top1']:.2f}",
        "train_accuracy": f"{learnt['top1']:.2f}",
        "train_loss": f"{learnt['nll']:.4f}",
        "seconds": run.result["cost"]["seconds"],
    }


class Shown(Progress):
    def step(self, done: int, total: int, metrics: dict[str, float]) -> None:
        if done % max(total // 10, 1) == 0:
            print(f"  step {done:,} of {total:,}", flush=True)


def render(rows: list[dict[str, str]]) -> str:
    """A table of every arm, with the difference over the seeds that both have, whichever way it goes."""
    from statistics import fmean

    from sla.stats import paired

    lines = [
        "| augmentation | seeds | held out % | training images % | against crops and flips alone | |",
        "|---|---|---|---|---|---|",
    ]
    found = {arm: {row["seed"]: row for row in rows if row["augment"] == arm} for arm in ARMS}
    for arm, own in found.items():
        means = [f"{fmean(float(row[key]) for row in own.values()):.1f}" if own else "" for key in SHOWN]
        gain, both = ["", ""], [seed for seed in own if seed in found[PLAIN]]
        if arm != PLAIN and len(both) > 1:
            difference = paired(*([float(some[s][SHOWN[0]]) for s in both] for some in (own, found[PLAIN])))
            gain = [with_ends(difference), ("undecided", "better", "worse")[difference.sign]]
        lines.append(f"| {' | '.join([f'`{arm}`', str(len(own)), *means, *gain])} |")
    return "\n".join([ABOUT, "", *lines])


def main() -> None:
    """Run the rows that are missing, seed by seed, and append each at once."""
    from dataclasses import replace

    from sla.datasets.load import load
    from sla.runs.result import find_commit

    commit = find_commit()  # of the code that runs, before results change the tree
    splits = replace(load("cifar10"), test=None)
    for seed in SEEDS:
        for number, augment in enumerate(ARMS):
            try:
                with TABLE.alone(f"{number}-{seed}", wait=False):
                    if any((row["augment"], row["seed"]) == (augment, str(seed)) for row in TABLE.read()):
                        continue
                    print(f"{augment}, seed {seed}", flush=True)
                    row = run_arm(augment, seed, splits) | {"commit": commit}
                    TABLE.append(row)
                    print(row, flush=True)
            except BlockingIOError:
                print(f"{augment}, seed {seed}: another process is at it", flush=True)
    TABLE.show(render)


if __name__ == "__main__":
    sys.exit(main())
