"""The page of a run: accuracy, curves, mistakes, calibration, views, cost and origin."""

import math
import shlex
from pathlib import Path
from typing import Any

from torch import Tensor

from sla.datasets.objects import SOURCE, source_name
from sla.errors import InputError, shown
from sla.images.storage import OnBadImage
from sla.images.store import Dataset
from sla.progress import QUIET, Progress
from sla.report.calibration import calibrations, most_confident_mistakes
from sla.report.charts import Series, Strip
from sla.report.class_frequency import frequencies
from sla.report.confusion import class_accuracies, confusion_matrix, confusions
from sla.report.ending import by_confidence, compare_models, describe_end, describe_unjudged
from sla.report.formatting import section
from sla.report.labels import label_cards
from sla.report.page import render, write
from sla.report.pictures import Card, short_name
from sla.report.views import view_accuracy, view_samples
from sla.runs.images_record import VAL
from sla.runs.metrics import MEASURES, MetricsFile, calibration_error, confidences
from sla.stats import share
from sla.tasks.classifier.choice import FEWEST_STEPS, usual_model
from sla.tasks.classifier.config import AVERAGED, FEATURES
from sla.tasks.classifier.evaluation import Outputs
from sla.tasks.classifier.features import describe_quick
from sla.tasks.classifier.label_check import check_by_run
from sla.tasks.classifier.label_doubts import Judged, LabelCheck
from sla.tasks.classifier.run import Run
from sla.tasks.classifier.split import same_classes
from sla.tasks.classifier.unseen_images import OTHER

MISTAKES = 12  # shown as pictures
DOUBTED = 12  # labels, likewise


def write_run_page(
    run: Run,
    path: str | Path,
    data: Any = None,
    progress: Progress = QUIET,
    on_bad_image: OnBadImage | None = None,
) -> str:
    """Evaluate the run on `data`, else on its test images, else on its held-out ones, and write its page.

    Returns the page's first sentences.
    """
    splits = run.load_splits(data, on_bad_image, progress)
    found = run.find_images(data, on_bad_image, progress, splits)
    if found is None:
        raise InputError(
            f"{shown(source_name(run.config.data.source))}: no test images, and none were held out; name the "
            "images to report on: `sla report RUN DATA`"
        )
    run.warn(found.notes)
    what = found.what if data is None else f"images of {shown(source_name(data))}"
    dataset = same_classes(found.dataset, run.classes)
    if not len(dataset):
        raise InputError(f"{run.folder}: no {what} to report on")
    outputs = run.outputs(dataset, progress=progress)
    labels = check_by_run(run, splits, progress, evaluate=False) if data is None else None
    write(Path(path), run_page(run, dataset, outputs, what, found.split, labels))
    return lead(run, outputs, dataset, what)


def end_of(run: Run, progress: Progress = QUIET) -> list[str]:
    """The plain sentences about a finished run, on its test images, else its held-out ones."""
    found = run.find_images(progress=progress)
    if found is None or not len(found.dataset):
        return describe_unjudged(run).lines
    outputs = run.outputs(same_classes(found.dataset, run.classes), progress=progress)
    return describe_end(run, outputs, [shown(name) for name in run.classes], found.split).lines


def run_page(
    run: Run,
    dataset: Dataset,
    outputs: Outputs,
    what: str,
    split: str = OTHER,
    labels: LabelCheck | None = None,
) -> str:
    """The whole page from the outputs (n, N) of a dataset whose classes are in the model's order.

    `split`: of the run, if the dataset is one. `labels`: a check of more labels than those of this dataset.
    """
    classes = [shown(name) for name in dataset.classes]
    headline, targets = run.headline, outputs.targets
    logits, temperature = outputs.logits[headline], run.temperatures.get(headline)
    predicted = logits.argmax(1)
    if labels is None or not labels.images:
        labels = LabelCheck(dataset.classes, [Judged("", dataset, logits / (temperature or 1.0))], "this run")
    trained = run.config.method.name
    method = f"features, then {trained}" if run.model_name else trained
    title = f"{run.folder.absolute().name}: {method} on {Path(source_name(run.config.data.source)).name}"
    return render(
        "run.html",
        title=shown(title),
        run=run,
        what=what,
        held_out=split == VAL,
        ending=describe_end(run, outputs, classes, split),
        cross_validated=describe_quick(found) if (found := section(run.result, "cross_validation")) else "",
        models=compare_models(run, split, len(targets)),
        usual=_usual_words(run),
        other_command=_other_command(run),
        by_features=run.checkpoint == FEATURES or run.config.is_features,
        uncalibrated=headline in run.uncalibrated,
        lead=lead(run, outputs, dataset, what),
        levels=by_confidence(logits, targets, temperature or 1.0),
        classes=classes,
        headline=headline,
        temperature=temperature,
        images=len(targets),
        accuracies=_accuracies(run, outputs),
        measures=MEASURES,
        losses=_curves(run, accuracy=False),
        accuracy_curves=_curves(run, accuracy=True),
        matrix=confusion_matrix(targets, predicted, len(classes)),
        confusions=confusions(targets, predicted),
        class_accuracies=class_accuracies(targets, predicted, classes),
        frequencies=frequencies(run.result, outputs, headline, classes),
        calibrations=calibrations(logits, targets, temperature, _temperature_interval(run)),
        mistakes=_mistakes(dataset, logits, targets, classes, temperature or 1.0),
        labels=labels,
        doubted=label_cards(labels.doubts[:DOUBTED], [shown(name) for name in labels.classes]),
        labels_command=shown(shlex.join(_labels_command(run))),
        views=run.model.method.views,
        view_samples=view_samples(run, dataset, classes),
        view_accuracy=view_accuracy(run.result),
        cost=section(run.result, "cost"),
        image_counts=section(run.result, "images"),
        origin=_origin(run),
    )


def _usual_words(run: Run) -> str:
    """Which model of a run with several answers unless held-out images clearly say another."""
    steps = section(run.result, "cost").get("iterations") or 0
    usual = usual_model(section(run.result, "accuracies"), steps)
    if usual == FEATURES:
        return f"After fewer than {FEWEST_STEPS} steps of training ({steps:,}) the quick model"
    return "The average of their weights" if usual == AVERAGED else "The trained one"


def lead(run: Run, outputs: Outputs, dataset: Dataset, what: str) -> str:
    """The page in two sentences, from the numbers alone."""
    headline, count = run.headline, len(outputs.targets)
    correct, logits = _hits(outputs, headline), outputs.logits[headline]
    top1, temperature = share(correct, count), run.temperatures.get(headline, 1.0)
    confidence = confidences(logits, temperature)[0].mean().item()
    error = f"{calibration_error(logits, outputs.targets, temperature):.1f}%"
    if headline in run.temperatures:
        error += f" ({calibration_error(logits, outputs.targets):.1f}% before temperature scaling)"
    return (
        f"{_inference_of(run, headline)} classifies {correct:,} of {count:,} {what} correctly: "
        f"{top1.mean:.1f}% (95% interval {top1.ends()}; chance among {dataset.num_classes:,} classes is "
        f"{100 / dataset.num_classes:.1f}%). Its mean confidence is {100 * confidence:.1f}%, its calibration "
        f"error {error}."
    )


def _inference_of(run: Run, inference: str) -> str:
    """At the start of a sentence."""
    if not run.model_name:
        return f"{inference.capitalize()} inference"
    return f"{run.model_name[0].upper()}{run.model_name[1:]} ({inference} inference)"


def _hits(outputs: Outputs, inference: str) -> int:
    return int((outputs.logits[inference].argmax(1) == outputs.targets).sum())


def _accuracies(run: Run, outputs: Outputs) -> list[dict[str, Any]]:
    count, scores = len(outputs.targets), outputs.scores(run.temperatures)
    cost = section(run.result, "cost")
    flop = section(cost, "inference_flop")
    if run.checkpoint == FEATURES:  # at another resolution
        flop = {"single": cost.get("features_inference_flop")}
    return [
        {
            **scores[inference],
            "inference": inference,
            "label": inference + ("\N{NO-BREAK SPACE}*" if inference == run.headline else ""),
            "strip": Strip(inference, (), share(_hits(outputs, inference), count)),
            "flop": flop.get(inference),
        }
        for inference in outputs.logits
    ]


def _curves(run: Run, accuracy: bool) -> list[Series]:
    """The accuracies of metrics.csv, or its losses, without damaged values."""
    rows, found = MetricsFile(run.folder / "metrics.csv", ()).read(), []
    for name in rows[0] if rows else ():
        if not name or name in ("step", "epoch", "learning_rate"):
            continue
        held_out = name.startswith("val_")
        values = [(float(row["step"]), _number(row.get(name))) for row in rows]
        points = [(step, value) for step, value in values if math.isfinite(value)]
        if points and accuracy == (held_out or name == "train"):
            label = f"held-out, {name.removeprefix('val_')}" if held_out else name
            found.append(Series(shown(label), points))
    return found


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan


def _mistakes(
    dataset: Dataset, logits: Tensor, targets: Tensor, classes: list[str], temperature: float
) -> list[Card]:
    worst = most_confident_mistakes(logits, targets, temperature, MISTAKES)
    if not worst:
        return []
    pixels, found = dataset.read([place for place, _ in worst]), []
    for row, (place, probability) in enumerate(worst):
        true, predicted = classes[int(targets[place])], classes[int(logits[place].argmax())]
        name = short_name(dataset.name(place))
        lines = (f"{predicted}, {100 * probability:.1f}%", f"true class {true}", name)
        description = f"{name}: {true}, predicted {predicted}"
        found.append(Card(pixels.images[row], float(pixels.aspect[row]), description, lines))
    return found


def _temperature_interval(run: Run) -> list[float]:
    found = section(section(run.result, "temperature_intervals"), run.checkpoint)
    return found.get(run.headline, [])


def _labels_command(run: Run) -> list[str]:
    source = run.config.data.source
    pictures = "PICTURES" if source.startswith(SOURCE) else source  # only Python can pass objects again
    return ["sla", "data", "check", pictures, "--labels", "--run", str(run.folder)]


def _other_command(run: Run) -> str:
    """For the page of another model of a run that trained after its quick one."""
    chosen = run.choose_checkpoint()
    other = FEATURES if run.checkpoint != FEATURES else "last" if chosen == FEATURES else chosen
    words = ["sla", "report", str(run.folder), "--checkpoint", other, "--out", "other.html"]
    return shown(shlex.join(words))


def _origin(run: Run) -> dict[str, str]:
    result, versions = run.result, section(run.result, "versions")
    again = shlex.join(["sla", "train", "--config", str(run.folder / "config.yaml"), "--out", "AGAIN"])
    about = [f"{name} {version}" for name, version in versions.items()]
    about += [f"{key} {result[key]}" for key in ("commit", "seed", "finished") if result.get(key) is not None]
    lines = (run.folder / "config.yaml").read_text(encoding="utf-8").splitlines()
    return {
        "command": shown(str(result.get("command") or "")),
        "again": shown(again),
        "about": shown("; ".join(about)),
        "config": "\n".join(map(shown, lines)),
    }
