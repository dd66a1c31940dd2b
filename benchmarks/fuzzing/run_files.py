"""What else runs leave: results, metrics, the record of a deadline, checksums."""

import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from fuzzing.guard import Reader
from fuzzing.mutate import encoded, json_text, mutate_text, mutate_tree
from sla.runs.checkpoint import (
    check_file,
)
from sla.runs.deadline import parse_record, read_pace
from sla.runs.metrics import MetricsFile, has_row

RECORDED = Path(__file__).resolve().parents[2] / "tests" / "recorded" / "distilled"


@cache
def result_seed() -> dict[str, Any]:
    held = json.loads((RECORDED / "result.json").read_text())
    held["chosen"] = {"checkpoint": "last", "inference": "single"}
    held["anytime"] = {"last": [{"order": [0, 1, 2, 3], "strictness": 1.0, "agreement": 0.9, "images": 100}]}
    return held


def make_result(rng: Random) -> bytes:
    held = result_seed()
    kept = {
        "accuracies",
        "headline",
        "images",
        *rng.sample(sorted(held), 4),
        *rng.sample(("chosen", "anytime", "images", "temperatures"), 2),
    }
    tree = mutate_tree(
        rng, {key: held[key] for key in kept}, ({"last": 1}, {"last": [1]}, "features", {"val": 1})
    )
    return encoded(rng, json_text(rng, tree))


def open_result(folder: Path):
    """The run opened with this result; its model and configuration, which have readers of their own, once."""
    import shutil

    from sla.runs import run as opened
    from sla.tasks.classifier.run import Run

    shutil.copytree(RECORDED / "checkpoint", folder / "checkpoint")
    (folder / "config.yaml").write_bytes((RECORDED / "config.yaml").read_bytes())
    whole = Run(folder)
    tree = opened.read_run_config(folder)
    opened.read_run_config = lambda _: tree  # type: ignore[assignment]
    opened.validate = lambda *_: whole.config  # type: ignore[assignment]
    Run._load_model = lambda *_: whole.model  # type: ignore[method-assign,assignment]

    def read(path: Path) -> None:
        run = Run(path.parent)
        assert run.headline in run.model.inferences
        assert repr(run)
        assert all(value > 0 for value in run.temperatures.values())
        if run.is_finished:
            assert run.score_table().header

    return read


METRICS = "step,epoch,loss,val_single\n1,0.5,2.25,\n2,1,1.5,40\n4,2,1.25,50\n"
DIGITS = ("9" * 20, "9" * 5000, "٣", "²", "1_0", "-1", "1e5", "+3", " 4", '"', "step", ",,", "\r", "\n", "\0")


def make_metrics(rng: Random) -> bytes:
    return encoded(rng, mutate_text(rng, METRICS, DIGITS))


def open_metrics(folder: Path):
    def read(path: Path) -> None:
        (folder / "metrics.csv").write_bytes(path.read_bytes())
        has_row(folder / "metrics.csv", 2)
        file = MetricsFile(folder / "metrics.csv", ["epoch", "loss", "val_single"])
        file.start(3, (1, 2, 3))
        assert all(int(row["step"]) <= 3 for row in file.read())

    return read


def make_pace(rng: Random) -> bytes:
    return encoded(rng, mutate_text(rng, "taken,step\n10,12\n20,25\n30,40\n", DIGITS))


def open_pace(_: Path):
    def read(path: Path) -> None:
        assert all(isinstance(one, int) for pair in read_pace(path).items() for one in pair)
        parse_record(path.read_text(errors="replace")[:200].replace(",", ":").replace("taken:step", ""))

    return read


def make_checksums(rng: Random) -> bytes:
    return encoded(
        rng, json_text(rng, mutate_tree(rng, {"weights.safetensors": "0" * 32, "state.safetensors": ""}))
    )


def open_checksums(folder: Path):
    (folder / "weights.safetensors").write_bytes(b"x")
    return lambda _: check_file(folder / "weights.safetensors")


READERS = [
    Reader("result.json", make_result, open_result, "result.json"),
    Reader("metrics.csv", make_metrics, open_metrics),
    Reader("pace.csv", make_pace, open_pace),
    Reader("checksums.json", make_checksums, open_checksums, "checksums.json"),
]
