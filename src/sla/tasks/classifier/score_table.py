"""The accuracies of a classifier's result as a table."""

from typing import Any

from sla.runs.run import ScoreTable
from sla.stats import share
from sla.tasks.classifier.config import DISTILLED, FEATURES

HEADER = ("", "inference", "accuracy %", "95% interval", "ECE %")
GROUPS = ("old classes %", "new classes %")  # columns of a run that has grown
STARS = "* what sla predict answers with."
NOTHING = "test images chose nothing."


def make_table(result: dict[str, Any], method: str, student: bool = False) -> ScoreTable:
    """A row for each checkpoint, split and inference of the result of a run with this method.

    Of a `student`, beside which the result has its teacher, each row says whose answer it is. The teacher is
    the same whichever checkpoint the student has, so its rows are there once.
    """
    rows, grown = list[tuple[str, ...]](), "grown" in result
    chosen = result.get("chosen") or {"checkpoint": "last", "inference": result.get("headline")}
    for checkpoint, found in result["accuracies"].items():
        for split in ("test", "val"):
            for inference, scores in found.get(split, {}).items():
                name = _name_model(method, student, checkpoint, inference)
                marked = (checkpoint, inference) == (chosen["checkpoint"], chosen["inference"])
                numbers = _numbers(scores, result["images"][split], grown)
                if name is not None:
                    rows.append((f"{name}, {split}", inference + (" *" if marked else ""), *numbers))
    views = result.get("view_accuracy")
    advice = () if views is None else (f"{method}: {views['advice']}",)
    return ScoreTable((*HEADER, *(GROUPS if grown else ())), rows, advice, (_legend(result),))


def _legend(result: dict[str, Any]) -> str:
    """What the star means, and which images chose something."""
    if "chosen" in result:
        return f"{STARS} Held-out images (val) chose checkpoint and model; {NOTHING}"
    if "best" in result["accuracies"]:
        return f"{STARS} Held-out images (val) chose the best checkpoint; {NOTHING}"
    return f"{STARS} {NOTHING.capitalize()}"


def _name_model(method: str, student: bool, checkpoint: str, inference: str) -> str | None:
    """Whose answer a row is; None for a teacher's row that is there already."""
    if checkpoint == FEATURES:
        return FEATURES
    if not student:
        return f"{method}, {checkpoint}"
    run = "" if method == DISTILLED else f"{method}, "
    if inference == DISTILLED:
        return f"{run}student, {checkpoint}"
    return f"{run}teacher" if checkpoint == "last" else None


def _numbers(scores: dict[str, float], count: int, grown: bool) -> tuple[str, ...]:
    """The columns of numbers; of a run that has grown, with those of old and of new classes."""
    interval = share(round(scores["top1"] * count / 100), count).ends()
    groups = ("old", "new") if grown else ()
    of_groups = (f"{scores[name]:.2f}" if name in scores else "" for name in groups)
    return (f"{scores['top1']:.2f}", interval, f"{scores['ece']:.1f}", *of_groups)
