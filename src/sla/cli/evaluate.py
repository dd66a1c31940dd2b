"""`sla evaluate`: single, aggregated, anytime and distilled inference, flips, ten-crop, ensembles."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sla.cli.output import say
from sla.cli.predict import Agreement, choose_agreement
from sla.cli.settings import Allow, Checkpoint, OnBadImage
from sla.errors import InputError, shown
from sla.progress import Progress

if TYPE_CHECKING:
    from sla.tasks.classifier.run import Run

Scores = dict[str, dict[str, float]]


def evaluate(
    run: Annotated[
        list[str], typer.Argument(help="Run folder, or several for an ensemble; then other data, if any.")
    ],
    inference: Annotated[
        str | None,
        typer.Option(
            help="single, aggregated, anytime, distilled, flips, ten-crop or ensemble. Default: all."
        ),
    ] = None,
    agreement: Agreement = None,
    members: Annotated[
        str | None,
        typer.Option(help="Inference of the ensemble's members. Default: each run's best."),
    ] = None,
    checkpoint: Checkpoint = "chosen",
    batch_size: Annotated[int, typer.Option(min=1, help="Images per batch.")] = 128,
    workers: Annotated[int, typer.Option(min=0, help="Processes that decode images.")] = 0,
    on_bad_image: OnBadImage = None,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    allow: Allow = None,
) -> None:
    """Measure accuracy, calibration error and time for each inference.

    Accuracy is top 1, top 5, and balanced: the mean over classes.
    """
    import json

    from sla.cli.display import print_table
    from sla.cli.output import showing_progress
    from sla.runs.metrics import MEASURES
    from sla.stats import share
    from sla.tasks.classifier.choice import MODELS
    from sla.tasks.classifier.config import FEATURES
    from sla.tasks.classifier.run import Run

    folders, data = _runs_and_data(run)
    if inference == "ensemble" and len(folders) < 2:
        other = f"; {shown(data)} is none: no config.yaml in it" if data else ""
        raise InputError(f"an ensemble needs at least two runs{other}")
    if inference != "ensemble" and (len(folders) > 1 or members):
        raise InputError(
            "several runs are evaluated together by --inference ensemble; side by side by sla compare"
        )
    runs = [Run(folder, checkpoint) for folder in folders]
    options = {"batch_size": batch_size, "workers": workers}
    with showing_progress(patience=2) as progress:
        if inference == "ensemble":
            (count, what), found = _together(runs, data, members, on_bad_image, progress, options)
        else:
            choose_agreement(runs[0], inference, agreement, progress)
            (count, what), found = _alone(runs[0], data, inference, on_bad_image, progress, options)
    if json_:
        say(
            json.dumps(
                {
                    "run": " ".join(folders),
                    "checkpoint": runs[0].checkpoint,
                    "images": count,
                    "inference": found,
                }
            )
        )
        return
    quick = MODELS[FEATURES] if runs[0].config.is_features else runs[0].model_name
    model = f" ({quick})" if len(runs) == 1 and quick else ""
    say(f"{count:,} {what or 'images'}, {runs[0].checkpoint} checkpoint{model}")
    if inference == "ensemble":
        say("ECE and NLL are of the averaged logits as they are: no temperature was fitted for them")
    if "anytime" in found:
        say(_about_anytime(runs[0], found["anytime"]))
    header = ("inference", "top 1 %", "95% interval", "top 5 %", "balanced %", "ECE %", "NLL", "ms per image")
    groups = [name for name in ("old", "new") if any(name in s for s in found.values())]
    print_table(
        (*header, *(f"{name} classes %" for name in groups)),
        [
            (
                name,
                f"{s['top1']:.2f}",
                share(round(s["top1"] * count / 100), count).ends(),
                f"{s['top5']:.2f}",
                f"{s['balanced']:.2f}",
                f"{s['ece']:.2f}",
                f"{s['nll']:.3f}",
                f"{1000 * s['seconds_per_image']:.2f}",
                *(f"{s[name]:.2f}" if name in s else "" for name in groups),
            )
            for name, s in found.items()
        ],
    )
    say(MEASURES)
    if failed := [name for name in found if len(runs) == 1 and name in runs[0].uncalibrated]:
        say(f"calibration of {', '.join(failed)} failed (temperature at its limit): confidence is unreliable")


def _runs_and_data(words: list[str]) -> tuple[list[str], str | None]:
    """The folders of runs, and the data named after them."""
    others = [word for word in words[1:] if not (Path(word) / "config.yaml").is_file()]
    if len(others) > 1 or (others and others[0] != words[-1]):
        raise InputError(f"{others[0]}: not a run: no config.yaml in it")
    return words[: len(words) - len(others)], others[0] if others else None


def _kind_of_images(run: "Run", data: str | None) -> str:
    images = {} if data else run.result.get("images", {})
    return "images" if not images else "test images" if images.get("test") else "held-out images"


def _about_anytime(run: "Run", scores: dict[str, float]) -> str:
    rule = run.model.anytime_rule
    assert rule is not None
    changed = ""
    if "changed" in scores:
        changed = f"; {scores['changed']:,} answers differ from aggregated inference"
    return (
        f"anytime: {scores['views']:.2f} of {len(rule.order)} views per image{changed}; calibrated on "
        f"{rule.images:,} held-out images to agree on {100 * rule.agreement:g}%"
    )


def _alone(
    run: "Run",
    data: str | None,
    inference: str | None,
    on_bad_image: Any,
    progress: Progress,
    options: dict[str, Any],
) -> tuple[tuple[int, str], Scores]:
    from sla.augment.flips import FLIPS

    images, found, all_views = run.images(data, on_bad_image, progress), {}, {}
    dataset = images.dataset
    averaged = {"ten-crop": run.ten_crop, FLIPS: run.flips}
    for name in run.model.inferences if inference is None else (inference,):
        start, passing = time.monotonic(), {"progress": progress, "what": f"{name} inference", **options}
        if name in averaged:
            outputs = averaged[name](dataset, **passing)
        else:
            outputs = run.evaluate(dataset, inferences=(name,), **passing)
        # Ten crops of an image are as confident as the one that the temperature was fitted for.
        plain = run.temperatures.get(run.model.best_inference, 1.0)
        fitted = run.temperatures | dict.fromkeys(averaged, plain)
        pace = _pace(start, len(dataset))
        if name == "aggregated":
            all_views = outputs.logits
        if name == "anytime":
            outputs = replace(outputs, logits=all_views | outputs.logits)
        found[name] = outputs.scores(fitted)[name] | run.group_scores(outputs).get(name, {}) | pace
    return (len(dataset), images.what), found


def _together(
    runs: "list[Run]",
    data: str | None,
    inference: str | None,
    on_bad_image: Any,
    progress: Progress,
    options: dict[str, Any],
) -> tuple[tuple[int, str], Scores]:
    from sla.compare.ensemble import evaluate_ensemble

    start = time.monotonic()
    outputs = evaluate_ensemble(
        runs, data, inference, on_bad_image=on_bad_image, progress=progress, **options
    )
    count = len(outputs.targets)
    return (count, _kind_of_images(runs[0], data)), {
        "ensemble": outputs.scores()["ensemble"] | _pace(start, count)
    }


def _pace(start: float, images: int) -> dict[str, float]:
    return {"seconds_per_image": (time.monotonic() - start) / max(images, 1)}
