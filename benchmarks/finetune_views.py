"""How many views a step, when fine-tuning? Four ways to spend the same looks at images, and the default.

    python benchmarks/finetune_views.py DATA OUT

DATA is a folder with train/ and test/ of photographs, such as the first 20 classes of CUB-200-2011 at 96
pixels; runs go below OUT, and those already there are kept. Writes results/finetune_views.csv and the
table in docs/training.md. About 8 minutes a run on one core.
"""

import csv
import json
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
TABLE = REPOSITORY / "results" / "finetune_views.csv"
PAGE = REPOSITORY / "docs" / "training.md"
WAYS = {  # name: method, views a step, epochs; views x epochs = 40, but for the last: the default
    "baseline": ("baseline", 1, 40),
    "sla-1": ("sla", 1, 40),
    "sla+sd-2": ("sla+sd", 2, 20),
    "sla+sd-4": ("sla+sd", 4, 10),
    "default": ("sla+sd", 2, 40),
}
COLUMNS = [
    "method",
    "views_per_step",
    "epochs",
    "seed",
    "images_seen",
    "val_single",
    "val_aggregated",
    "val_distilled",
    "test_single",
    "test_aggregated",
    "test_distilled",
    "training_flop",
    "seconds",
    "commit",
]


def row_of(folder: Path, method: str, views: int, epochs: int) -> dict[str, object]:
    result = json.loads((folder / "result.json").read_text())
    row: dict[str, object] = {"method": method, "views_per_step": views, "epochs": epochs}
    row |= {"seed": result["seed"], "commit": result["commit"]}
    row |= {name: result["cost"][name] for name in ("images_seen", "training_flop", "seconds")}
    for split in ("val", "test"):
        for how, scores in result["accuracies"]["last"][split].items():
            row[f"{split}_{how}"] = f"{scores['top1']:.2f}"
    return row


def render(rows: list[dict[str, str]]) -> str:
    lines = [
        "| method | views a step | epochs | held out: single | aggregated | distilled "
        "| test: single | aggregated | distilled |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row["method"], row["views_per_step"], row["epochs"]]
        for split in ("val", "test"):
            cells += [f"{float(row[key]):.1f}" if row[key] else "" for key in _kinds(split)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _kinds(split: str) -> list[str]:
    return [f"{split}_{how}" for how in ("single", "aggregated", "distilled")]


def main(data: str, out: str) -> None:
    import sla

    for name, (method, views, epochs) in WAYS.items():
        folder = Path(out) / name
        if not (folder / "result.json").exists():
            settings = {"method__name": method, "method__views_per_step": views, "run__epochs": epochs}
            settings |= {"data__hold_out": 0.33, "run__evaluations": 4, "run__compile": False}
            sla.fit(data, folder, resume=(folder / "config.yaml").exists(), say=print, **settings)
        done = [(n, w) for n, w in WAYS.items() if (Path(out) / n / "result.json").exists()]
        with open(TABLE, "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(row_of(Path(out) / n, *way) for n, way in done)
    with open(TABLE, newline="") as file:
        table = render(list(csv.DictReader(file)))
    before, start, rest = PAGE.read_text().partition("<!-- finetune_views -->\n")
    _, end, after = rest.partition("\n<!-- end -->")
    PAGE.write_text(before + start + table + end + after)


if __name__ == "__main__":
    main(*sys.argv[1:])
