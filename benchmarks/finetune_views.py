"""How many views per step when fine-tuning? Four ways to spend the same forward passes, and the default.

    python benchmarks/finetune_views.py DATA OUT

DATA is a folder with train/ and test/ of photographs, such as the first 20 classes of CUB-200-2011 at 96
pixels; runs go below OUT, and those already there are kept. Writes results/finetune_views.csv and the
table in docs/training.md. About 8 minutes a run on one core.
"""

import json
import sys
from pathlib import Path

from tables import Printed, Table

KINDS = ("single", "aggregated", "distilled")
WAYS = {  # name: method, views per step, epochs; views x epochs = 40, but for the last: the default
    "baseline": ("baseline", 1, 40),
    "sla-1": ("sla", 1, 40),
    "sla+sd-2": ("sla+sd", 2, 20),
    "sla+sd-4": ("sla+sd", 4, 10),
    "default": ("sla+sd", 2, 40),
}
SCORES = [f"{split}_{inference}" for split in ("val", "test") for inference in KINDS]
WAY = ("method", "views_per_step", "epochs")
COLUMNS = (*WAY, "seed", "images_seen", *SCORES, "training_flop", "seconds", "commit")
TABLE = Table("finetune_views", "docs/training.md", COLUMNS)


def row_of(folder: Path, method: str, views: int, epochs: int) -> dict[str, object]:
    result = json.loads((folder / "result.json").read_text())
    row: dict[str, object] = dict(zip(WAY, (method, views, epochs), strict=True))
    row |= {"seed": result["seed"], "commit": result["commit"]}
    row |= {name: result["cost"][name] for name in ("images_seen", "training_flop", "seconds")}
    for split in ("val", "test"):
        for inference, scores in result["accuracies"]["last"][split].items():
            row[f"{split}_{inference}"] = f"{scores['top1']:.2f}"
    return row


def render(rows: list[dict[str, str]]) -> str:
    lines = [
        "| method | views per step | epochs | held out: single | aggregated | distilled "
        "| test: single | aggregated | distilled |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row[key] for key in WAY]
        cells += [f"{float(row[key]):.1f}" if row[key] else "" for key in SCORES]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(data: str, out: str) -> None:
    import sla

    for name, (method, views, epochs) in WAYS.items():
        folder = Path(out) / name
        if not (folder / "result.json").exists():
            settings = {"method__name": method, "method__views_per_step": views, "run__epochs": epochs}
            settings |= {"data__hold_out": 0.33, "run__evaluations": 4, "run__compile": False}
            sla.fit(data, folder, resume=(folder / "config.yaml").exists(), progress=Printed(), **settings)
        done = [(n, w) for n, w in WAYS.items() if (Path(out) / n / "result.json").exists()]
        TABLE.write(row_of(Path(out) / n, *way) for n, way in done)
    TABLE.show(render)


if __name__ == "__main__":
    main(*sys.argv[1:])
