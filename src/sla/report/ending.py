"""A run in plain sentences: how often it is right, where it is weakest, when to trust it, what next."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from torch import Tensor

from sla.datasets.objects import SOURCE
from sla.errors import shown
from sla.report.confusion import ClassAccuracy, class_accuracies
from sla.runs.images_record import VAL
from sla.runs.metrics import confidences
from sla.stats import Interval, share
from sla.tasks.classifier.choice import MODELS
from sla.tasks.classifier.config import AVERAGED, FEATURES
from sla.tasks.classifier.evaluation import Outputs
from sla.tasks.classifier.features import cross_validated_accuracy
from sla.tasks.classifier.run import Run

LEVELS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99)
TRUSTED = 0.9  # the level reported
TELLING = 3  # misclassified pictures of a class from which on more are advised
FEWEST, FEWEST_OF_CLASS = 10, 3  # pictures, and pictures of a class, of which something is said


class NextStep(NamedTuple):
    """What a person may do next: words, and a command to paste after them; one of both may be empty."""

    words: str
    command: str = ""

    @property
    def text(self) -> str:
        """For the terminal."""
        return ": ".join(part for part in self if part)


class Ending(NamedTuple):
    """What is said at the end of a run and at the top of its page."""

    sentences: list[str]
    next: list[NextStep]

    @property
    def lines(self) -> list[str]:
        """For the terminal."""
        return [*self.sentences, f"Next: {'; '.join(step.text for step in self.next)}."]


class Confident(NamedTuple):
    """The images of which the model is at least so confident: how many, how many right, and their share."""

    level: float
    images: int
    right: int
    accuracy: Interval


def by_confidence(logits: Tensor, targets: Tensor, temperature: float = 1.0) -> list[Confident]:
    """The images (n, N) at each level of confidence, where there are any."""
    confidence, predicted = confidences(logits, temperature)
    found = []
    for level in LEVELS:
        trusted = confidence >= level
        right, count = int((trusted & (predicted == targets)).sum()), int(trusted.sum())
        if count:
            found.append(Confident(level, count, right, share(right, count)))
    return found


def describe_end(run: Run, outputs: Outputs, classes: Sequence[str], split: str) -> Ending:
    """How the run ended, by the run's headline inference on images that it was not trained on.

    `classes`: their names as shown. `split`: of the images. Held-out ones chose the checkpoint and the
    temperature, so new images are a little harder.
    """
    held_out = split == VAL
    headline, targets = run.headline, outputs.targets
    logits, temperature = outputs.logits[headline], run.temperatures.get(headline, 1.0)
    levels = by_confidence(logits, targets, temperature)
    total = levels[0]
    worst = _weakest(class_accuracies(targets, logits.argmax(1), classes))
    alone = run.config.is_features  # nothing was chosen on held-out pictures
    chose = "held-out pictures" if alone else "held-out pictures, by which models were compared"
    unseen = chose if held_out else "pictures it had not seen"
    said = [f"Right on {total.right:,} of {total.images:,} {unseen}: {total.accuracy.percent()}."]
    if models := compare_models(run, split, total.images):
        said.append(_which(models))
    cross_validated = cross_validated_accuracy(run.result.get("cross_validation", {}))
    if held_out and alone and cross_validated:
        said.append(f"{cross_validated.capitalize()}.")
    if groups := run.group_scores(outputs).get(headline):
        shares = " and ".join(f"{value:.0f}% of {name} classes" for name, value in groups.items())
        said.append(f"Since it grew: {shares}.")
    chance = chance_accuracy(logits.argmax(1), targets)
    # Cross-validation has many more pictures than were held out.
    learnt = held_out and alone and _above(run, 100 / len(classes))
    if total.accuracy.low <= chance and worst is not None and total.images >= FEWEST and not learnt:
        better = f"better than chance ({chance:.0f}%)"
        said.append(f"That is {'no' if total.accuracy.mean <= chance else 'not clearly'} {better}.")
        return Ending(said, _learn_more(run))
    if worst is not None and worst.images >= FEWEST_OF_CLASS:
        often = "often" if worst.confused and worst.confused.images > 1 else "once"
        taken = f" ({often} predicted as {classes[worst.confused.predicted]})" if worst.confused else ""
        said.append(f"Weakest: {worst.name}, {worst.correct:,} of {worst.images:,}{taken}.")
    trusted = next((one for one in levels if one.level == TRUSTED), None)
    if headline in run.uncalibrated:
        said.append("Its confidence is unreliable: calibration failed.")
    elif trusted is None:
        said.append(f"It is never {100 * TRUSTED:.0f}% confident.")
    else:
        right = f"right on {trusted.right:,} of {trusted.images:,}"
        said.append(f"When at least {100 * TRUSTED:.0f}% confident it is {right}.")
    return Ending(said, _next(run, worst, sure=trusted is not None and headline not in run.uncalibrated))


def _above(run: Run, chance: float) -> bool:
    """Whether the cross-validated accuracy of a quick model is clearly above this one, in percent."""
    found = run.result.get("cross_validation", {})
    right, images = found.get("right"), found.get("images")
    return bool(images) and share(right, images).low > chance


def chance_accuracy(predicted: Tensor, targets: Tensor) -> float:
    """What answers (n,) as frequent as these would have right if they were dealt out at random, in percent.

    That is 100 / N of N equally frequent classes, and all that always naming one class has right.
    """
    count, num_classes = len(targets), int(max(predicted.max(), targets.max())) + 1
    answers, truth = (one.bincount(minlength=num_classes).double() / count for one in (predicted, targets))
    return 100 * float(answers @ truth)


class ModelAccuracy(NamedTuple):
    """One of the models of a run, by its headline inference on the images of a split."""

    name: str
    inference: str
    right: int
    accuracy: Interval
    opened: bool  # the sentences and the page are about it
    answers: bool  # commands use it by default


def compare_models(run: Run, split: str, count: int) -> list[ModelAccuracy]:
    """The quick model, the trained one and their average, of a run that has them: the opened one first.

    Nothing where the images, so many of a split, are not those of the result.
    """
    found, chosen = run.result.get("accuracies", {}), run.choose_checkpoint()
    if FEATURES not in found or run.result.get("images", {}).get(split) != count:
        return []
    models = []
    several = [FEATURES, run.checkpoint, chosen, "last", *([AVERAGED] if AVERAGED in found else [])]
    for checkpoint in dict.fromkeys(several):
        inference = run.judged_inference(checkpoint) or run.result["headline"]
        inference = "single" if checkpoint == FEATURES else inference
        top1 = found.get(checkpoint, {}).get(split, {}).get(inference, {}).get("top1")
        if top1 is None:
            return []
        right, marks = round(top1 * count / 100), (checkpoint == run.checkpoint, checkpoint == chosen)
        models.append(ModelAccuracy(MODELS[checkpoint], inference, right, share(right, count), *marks))
    return sorted(models, key=lambda one: not one.opened)


def _which(models: Sequence[ModelAccuracy]) -> str:
    own, *others = (f"{one.name}{', which answers by default' if one.answers else ''}" for one in models)
    quick_answers = models[0].answers and models[0].name == MODELS[FEATURES]
    beside = MODELS["last"] if quick_answers else MODELS[FEATURES]
    said = [
        f"{name} is right on {one.right:,}: {one.accuracy.percent()}"
        for name, one in zip(others, models[1:], strict=True)
        if one.answers or one.name == beside
    ]
    return f"That is {own}; {'; '.join(said)}."


def describe_unjudged(run: Run) -> Ending:
    """The same of a run of which no picture was held out: what cross-validation found, if it did."""
    said = "Nothing was held out, so its accuracy is unknown."
    if cross_validated := cross_validated_accuracy(run.result.get("cross_validation", {})):
        quick = run.config.is_features or run.checkpoint == FEATURES
        said = f"{cross_validated.capitalize()}." if quick else f"The quick model: {cross_validated}."
    return Ending([said], _next(run, None, sure=bool(cross_validated)))


def _weakest(classes: list[ClassAccuracy]) -> ClassAccuracy | None:
    """The class with the lowest accuracy; None where everything is right."""
    worst = classes[0]
    return worst if worst.images and worst.correct < worst.images else None


def _short(source: str) -> str:
    """A path below the current folder as it would be typed there."""
    path = Path(source)
    here = path.is_absolute() and path != Path.cwd() and path.is_relative_to(Path.cwd())
    return str(path.relative_to(Path.cwd())) if here else source


def _learn_more(run: Run) -> list[NextStep]:
    """What to try where nothing was learnt."""
    source, rate = run.config.data.source, run.config.optimizer.learning_rate
    steps = []
    if not run.config.is_features:
        steps.append(NextStep("train longer (--epochs or --minutes)"))
        if rate is not None:
            steps.append(NextStep(f"try another learning rate than {rate:g} (--set optimizer.learning_rate)"))
    elif not source.startswith(SOURCE):
        steps.append(_train_command(run))
    if not source.startswith(SOURCE):
        steps.append(NextStep("check pictures and labels", f"sla data check {shown(quote(_short(source)))}"))
    return steps or [NextStep("check pictures and labels")]


def _train_command(run: Run) -> NextStep:
    data, out = run.config.data, f"{run.folder}-trained"
    kept = {"classes": ", ".join(map(str, data.classes or ())), "per_class": data.per_class}
    same = "".join(f" --set {shown(quote(f'data.{key}={value}'))}" for key, value in kept.items() if value)
    command = f"sla train {shown(quote(_short(data.source)))}{same} --out {shown(quote(out))}"
    return NextStep("training may gain more", command)


def _next(run: Run, worst: ClassAccuracy | None, sure: bool) -> list[NextStep]:
    """`sure`: the confidence that is advised is one that the model reaches."""
    folder, source = str(run.folder), run.config.data.source
    model = "" if run.checkpoint == run.choose_checkpoint() else f" --checkpoint {run.checkpoint}"
    least = f" --min-confidence {TRUSTED:g}" if sure else ""
    predict = f"sla predict {shown(quote(folder))} PICTURES{least}{model}"
    steps = [NextStep("", predict)]
    if run.config.is_features and "judged_by" not in run.result and not source.startswith(SOURCE):
        steps.append(_train_command(run))  # objects only Python can pass again
    elif worst is not None and worst.images - worst.correct >= TELLING:
        steps.append(NextStep(f"more pictures of {worst.name} would help most"))
    return steps
