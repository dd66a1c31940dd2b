"""The page of a run: how good, where it fails, how sure it is, what it saw, what it cost."""

import math
import shlex
from pathlib import Path

import torch
from torch import Tensor

from sla.errors import InputError, shown
from sla.images.storage import OnBadImage
from sla.images.store import Dataset
from sla.labels import join_labels
from sla.progress import QUIET, Progress
from sla.report import html
from sla.report.calibration import calibration_part, most_confident_mistakes
from sla.report.charts import Series, Strip, line_chart, strip_chart
from sla.report.formatting import amount, duration, part
from sla.report.imbalance import frequency_part
from sla.report.matrix import classes_part, matrix_part
from sla.report.pictures import Card, cards, sheet, short_name
from sla.report.views import view_accuracy_part
from sla.runs.metrics import MetricsFile, calibration_error
from sla.sampling.loader import EvalLoader
from sla.stats import Interval, share
from sla.tasks.classifier.evaluation import Outputs
from sla.tasks.classifier.run import HELD_OUT, Run
from sla.tasks.classifier.split import same_classes

MISTAKES, VIEWED = 12, 4  # pictures of mistakes, and of what the model sees
NOTES = {
    HELD_OUT: "This data has no test images. What follows was measured on the held-out images: the model did "
    "not train on them, but they chose its best checkpoint and its temperatures. Expect a little less on new "
    "images."
}


def write_run_page(
    run: Run,
    path: Path,
    data: str | Path | None = None,
    progress: Progress = QUIET,
    on_bad_image: OnBadImage | None = None,
) -> str:
    """Evaluate the run and write its page; returns the page's first sentences."""
    dataset, what = images_of(run, data, progress, on_bad_image)
    dataset = same_classes(dataset, run.classes)
    if not len(dataset):
        raise InputError(f"{run.folder}: no {what} to report on")
    outputs = run.evaluate(dataset, progress)
    html.write(path, run_page(run, dataset, outputs, what))
    return lead(run, outputs, dataset, what)


def images_of(
    run: Run,
    data: str | Path | None = None,
    progress: Progress = QUIET,
    on_bad_image: OnBadImage | None = None,
) -> tuple[Dataset, str]:
    """What to report on and its name: the data given, else the run's test images, else its held-out ones."""
    if data is not None:
        return run.dataset(data, on_bad_image, progress), f"images of {shown(data)}"
    found = run.unseen(on_bad_image, progress)
    if found is None:
        raise InputError(
            f"{shown(run.config.data.source)}: no test images, and none were held out: say what to report "
            "on, `sla report RUN DATA`"
        )
    return found


def run_page(run: Run, dataset: Dataset, outputs: Outputs, what: str) -> str:
    """The whole page from the outputs (n, N) of a dataset whose classes are in the model's order."""
    classes = [shown(name) for name in dataset.classes]
    headline, targets = run.model.method.headline, outputs.targets
    logits, temperature = outputs.logits[headline], run.temperatures.get(headline)
    predicted = logits.argmax(1)
    title = f"{run.folder.absolute().name}: {run.config.method.name} on {Path(run.config.data.source).name}"
    fitted = "" if temperature is not None else "No temperature was fitted: this run has no held-out images. "
    return html.page(
        shown(title),
        html.paragraph(lead(run, outputs, dataset, what), "lead"),
        html.paragraph(NOTES[what]) if what in NOTES else "",
        html.section("Accuracy by kind of inference", _accuracies(run, outputs, what)),
        html.section("Training", _curves(run.folder / "metrics.csv")),
        html.section("What is taken for what", matrix_part(targets, predicted, classes)),
        html.section("Accuracy of each class", classes_part(targets, predicted, classes)),
        html.section("Frequent and rare classes", frequency_part(run, outputs, classes)),
        html.section(
            "How sure it is",
            html.paragraph(
                f"{fitted}Of {headline} inference, on the {what}."
                + (" The temperature was fitted on held-out images." if temperature is not None else ""),
                "soft",
            ),
            calibration_part(logits, targets, temperature),
        ),
        html.section("The worst mistakes", _mistakes(dataset, logits, targets, classes, temperature or 1.0)),
        html.section("What the model sees", _views(run, dataset, classes)),
        view_accuracy_part(run.result),
        html.section("What it cost", _cost(run)),
        html.section("How this was made", *_origin(run)),
    )


def lead(run: Run, outputs: Outputs, dataset: Dataset, what: str) -> str:
    """The page in three sentences, from the numbers alone."""
    headline, count = run.model.method.headline, len(outputs.targets)
    right = _hits(outputs, headline)
    mean, low, high = share(right, count)
    words = (
        f"{headline.capitalize()} inference is right on {right:,} of {count:,} {what}: {mean:.1f}% "
        f"(95% interval {low:.1f} to {high:.1f}); guessing among {dataset.num_classes:,} classes "
        f"would be right on {100 / dataset.num_classes:.1f}%."
    )
    logits, temperature = outputs.logits[headline], run.temperatures.get(headline)
    before = calibration_error(logits, outputs.targets)
    confidence = logits.double().div(temperature or 1.0).softmax(1).max(1).values.mean().item()
    words += f" On average it claims to be {100 * confidence:.1f}% sure; its calibration error is "
    if temperature is None:
        return words + f"{before:.1f}%."
    after = calibration_error(logits, outputs.targets, temperature)
    return words + f"{after:.1f}% ({before:.1f}% before temperature scaling)."


def _hits(outputs: Outputs, inference: str) -> int:
    return int((outputs.logits[inference].argmax(1) == outputs.targets).sum())


def _accuracies(run: Run, outputs: Outputs, what: str) -> str:
    count, scores = len(outputs.targets), outputs.scores(run.temperatures)
    found: dict[str, Interval] = {
        inference: share(_hits(outputs, inference), count) for inference in outputs.logits
    }
    flop = part(part(run.result, "cost"), "inference_flop")
    rows = [
        (
            inference + (" *" if inference == run.model.method.headline else ""),
            f"{top1.mean:.2f}%",
            f"{top1.low:.1f} to {top1.high:.1f}",
            f"{scores[inference]['top5']:.2f}%",
            f"{scores[inference]['ece']:.2f}%",
            f"{scores[inference]['nll']:.3f}",
            amount(flop.get(inference), "FLOP"),
        )
        for inference, top1 in found.items()
    ]
    header = ("inference", "top 1", "95% interval", "top 5", "ECE", "NLL", "cost an image")
    return (
        html.paragraph(
            f"On {count:,} {what}, with the {run.checkpoint} checkpoint. The bar is the 95% interval "
            "(Wilson) that so many images allow; the dashed line is the first row. All kinds saw the same "
            "images, so their intervals may overlap though they differ.",
            "soft",
        )
        + strip_chart([Strip(inference, (), top1) for inference, top1 in found.items()])
        + html.table(header, rows, "Accuracy by kind of inference")
        + html.paragraph("* the headline, which the rest of the page is about", "soft")
    )


def _curves(path: Path) -> str:
    rows = MetricsFile(path, ()).read()
    columns = [name for name in (rows[0] if rows else {}) if name]

    def lines(names: list[str]) -> list[Series]:
        found = [Series(_spoken(name), _points(rows, name)) for name in names]
        return [one for one in found if one.points]

    losses = [name for name in columns if name not in ("step", "epoch", "learning_rate", "train")]
    losses = [name for name in losses if not name.startswith("val_")]
    accuracies = [name for name in columns if name == "train" or name.startswith("val_")]
    parts = []
    if some := lines(losses):
        parts.append("<h3>Loss</h3>" + line_chart(some, "step", "Loss over the steps of training"))
    if some := lines(accuracies):
        words = "Training images as they were augmented, seen while learning; held-out images as they are."
        parts.append("<h3>Accuracy</h3>" + html.paragraph(words, "soft"))
        parts.append(line_chart(some, "step", "Accuracy over the steps of training", "%"))
    return "".join(parts) or html.paragraph(
        "There are no curves: the run has no metrics.csv, or an empty one."
    )


def _points(rows: list[dict[str, str]], name: str) -> list[tuple[float, float]]:
    """(step, value) where the column has a number."""
    points = []
    for row in rows:
        try:
            value = float(row.get(name) or "nan")
        except ValueError:
            continue
        if math.isfinite(value):
            points.append((float(row["step"]), value))
    return points


def _spoken(column: str) -> str:
    return shown(f"held-out, {column.removeprefix('val_')}" if column.startswith("val_") else column)


def _mistakes(
    dataset: Dataset, logits: Tensor, targets: Tensor, classes: list[str], temperature: float
) -> str:
    worst = most_confident_mistakes(logits, targets, temperature, MISTAKES)
    if not worst:
        return html.paragraph("There are none: every image was given its own class.")
    places = [place for place, _ in worst]
    pixels, items = dataset.read(places), []
    for row, (place, probability) in enumerate(worst):
        true, given = classes[int(targets[place])], classes[int(logits[place].argmax())]
        name = short_name(dataset.name(place))
        lines = (f"{given}, {100 * probability:.1f}%", f"is {true}", name)
        spoken = f"{name}: {true}, taken for {given}"
        items.append(Card(pixels.images[row], float(pixels.aspect[row]), spoken, lines))
    return html.paragraph("Wrong answers, the surest first.", "soft") + cards(items)


@torch.inference_mode()
def _views(run: Run, dataset: Dataset, classes: list[str]) -> str:
    """A few images of different classes as they reach the model, through each of its views."""
    first = sorted({int(c): place for place, c in reversed(list(enumerate(dataset.targets)))}.values())
    (batch,) = EvalLoader(dataset.subset(first[:VIEWED]), VIEWED)
    views, preprocessing = run.model.method.views, run.model.about["preprocessing"]
    seen = views.stack(run.pipeline(batch.images, batch.draws, batch.aspect))
    mean, std = (torch.tensor(preprocessing[key]).view(-1, 1, 1) for key in ("mean", "std"))
    pixels = (255 * (seen * std + mean)).round().clamp(0, 255).to(torch.uint8)
    names, captions = [classes[c] for c in batch.targets.tolist()], [list(views.names)] * len(pixels)
    words = f"Images at {seen.shape[-1]} pixels through the {len(views)} views of the method."
    if "joint" in run.model.heads:
        labels = join_labels(batch.targets, len(views)).view(len(pixels), -1).tolist()
        captions = [[f"label {label}" for label in line] for line in labels]
        words += f" Each class in each view is a label of its own: {len(classes) * len(views):,} in all."
    drawn = sheet([list(line) for line in pixels], views.names, captions, names)
    return html.paragraph(words, "soft") + drawn


def _cost(run: Run) -> str:
    cost = part(run.result, "cost")
    if not cost:
        return html.paragraph("Not known: the run is not finished, it has no result.json.")
    rows = [
        ("training time", duration(cost.get("seconds"))),
        ("steps", amount(cost.get("iterations"))),
        ("images seen, each view counted", amount(cost.get("images_seen"))),
        ("floating-point operations of training", amount(cost.get("training_flop"), "FLOP")),
        ("peak memory", amount(cost.get("peak_memory_bytes"), "B")),
        ("parameters", amount(cost.get("parameters"))),
        ("device", shown(str(cost.get("device", "not known")))),
        ("processes", amount(cost.get("processes"))),
    ]
    images = part(run.result, "images")
    rows += [(f"images, {name}", amount(images.get(name))) for name in ("train", "val", "test")]
    return html.table(("of the run", "amount"), rows, "What the run cost")


def _origin(run: Run) -> list[str]:
    result, versions = run.result, part(run.result, "versions")
    parts = []
    if result.get("command"):
        parts += [html.paragraph("It was typed as"), html.code(shown(str(result["command"])))]
    again = shlex.join(["sla", "train", "--config", str(run.folder / "config.yaml"), "--out", "AGAIN"])
    parts += [html.paragraph("and the same run, with all that was chosen, is"), html.code(shown(again))]
    said = [f"{name} {version}" for name, version in versions.items()]
    said += [f"{key} {result[key]}" for key in ("commit", "seed", "finished") if result.get(key) is not None]
    if said:
        parts.append(html.paragraph(shown("; ".join(said)), "soft"))
    lines = (run.folder / "config.yaml").read_text(encoding="utf-8").splitlines()
    text = "\n".join(map(shown, lines))
    return [*parts, html.details("The whole configuration", html.pre(text, "config.yaml"))]
