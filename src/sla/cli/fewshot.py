"""`sla fewshot`: learn new classes from a few images each."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sla.cli.names import FEWSHOT_METHODS
from sla.cli.output import say
from sla.cli.settings import OnBadImage, RefuseOrSkip
from sla.errors import InputError

app = typer.Typer(
    help="Few-shot learning: recognise new classes from a few images of each.", no_args_is_help=True
)
METHODS = ", ".join(FEWSHOT_METHODS)
Argument, Option = typer.Argument, typer.Option
Method = Annotated[str | None, Option(help=f"For a pretrained backbone: {METHODS}.")]
Views = Annotated[str | None, Option(help="For a pretrained backbone: none, rot4, ...")]
Checkpoint = Annotated[str, Option(help="Checkpoint: last, or best on the validation classes.")]


@app.command()
def train(
    data: Annotated[str | None, Argument(help="cifar-fs, fc100, mini-imagenet, or your own folder.")] = None,
    out: Annotated[Path | None, Option(help="Run folder. Default: runs/NAME-fewshot.")] = None,
    method: Annotated[str | None, Option(help=f"{METHODS}. Default: ridge.")] = None,
    views: Annotated[str | None, Option(help="rot4 (default), rgb3, ..., or none.")] = None,
    backbone: Annotated[str | None, Option(help="convnet4, efficientnet_lite0, timm:NAME, ...")] = None,
    weights: Annotated[str | None, Option(help="none, pretrained, a file, or a run folder.")] = None,
    way: Annotated[int | None, Option(help="Classes per episode. Default: 5.")] = None,
    shot: Annotated[int | None, Option(help="Support images per class. Default: 5.")] = None,
    query: Annotated[int | None, Option(help="Query images per class. Default: 6.")] = None,
    augment: Annotated[str | None, Option(help="E.g. 'crop(4), jitter(0.4), flip'.")] = None,
    iterations: Annotated[int | None, Option(help="Number of training steps. Default: 2,000.")] = None,
    seed: Annotated[int | None, Option(help="Random seed.")] = None,
    on_bad_image: Annotated[str | None, Option(help="Unreadable images: refuse or skip.")] = None,
    config: Annotated[Path | None, Option(help="A YAML file; options override it.")] = None,
    assign: Annotated[list[str] | None, Option("--set", help="Any key, e.g. episodes.per_step=8.")] = None,
    resume: Annotated[bool, Option("--resume", help="Resume the run in --out.")] = False,
) -> None:
    """Train on episodes; test on classes that were not seen in training."""
    from sla.cli.display import TrainingDisplay
    from sla.cli.settings import choose_out, make_tree, naming_options
    from sla.cli.train import print_results
    from sla.runs.folder import default_folder
    from sla.session import train as run_session
    from sla.tasks.registry import make_config

    given: dict[str, Any] = {
        "data.source": data,
        "method.name": method,
        "method.views": views,
        "model.backbone": backbone,
        "model.weights": weights,
        "episodes.way": way,
        "episodes.shot": shot,
        "episodes.query": query,
        "augment": augment,
        "run.iterations": iterations,
        "run.seed": seed,
        "data.on_bad_image": on_bad_image,
    }
    tree = make_tree(given, assign, config, task="fewshot")
    with naming_options(given, assign):
        settings = make_config(tree, str(config) if config else "configuration")
    out = choose_out(out, resume, default_folder(settings.data.source, "-fewshot"))
    with TrainingDisplay(sys.stdout.isatty()) as display:
        run = run_session(settings, out, resume=resume, progress=display)
    print_results([run])


@app.command()
def evaluate(
    runs: Annotated[
        list[str], Argument(help="One or two run folders, or the name of a pretrained backbone.")
    ],
    data: Annotated[str | None, Option(help="Data to use instead of the run's test classes.")] = None,
    shot: Annotated[str | None, Option(help="Shots, e.g. 1,5. Default: those of the run.")] = None,
    way: Annotated[
        int | None, Option(min=2, help="Classes per episode. Default: the same as in the run.")
    ] = None,
    query: Annotated[
        int | None, Option(min=1, help="Query images per class. Default: as in the run, or those left.")
    ] = None,
    episodes: Annotated[int | None, Option(min=2, help="How many. Default: as in the run, or 1,000.")] = None,
    seed: Annotated[int, Option(help="Seed of the episodes.")] = 0,
    method: Method = None,
    views: Views = None,
    checkpoint: Checkpoint = "last",
    on_bad_image: OnBadImage = None,
    json_: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure accuracy on many episodes, with its interval; for two runs, also the difference."""
    import json

    from sla.cli.display import TrainingDisplay, print_table
    from sla.tasks.fewshot.compare import score_episodes

    with TrainingDisplay(sys.stdout.isatty() and not json_) as display:
        found = score_episodes(
            runs,
            data=data,
            shots=None if shot is None else _numbers(shot),
            way=way,
            query=query,
            episodes=episodes,
            seed=seed,
            method=method,
            views=views,
            checkpoint=checkpoint,
            on_bad_image=on_bad_image,
            progress=display,
        )
    rows: list[tuple[Any, ...]] = []
    described: list[dict[str, Any]] = []
    for one in found.scores:
        mean, half = one.accuracy.mean, one.accuracy.high - one.accuracy.mean
        rows.append((one.run, one.shot, one.inference, f"{mean:.2f}", f"± {half:.2f}"))
        named = {"run": one.run, "shot": one.shot, "inference": one.inference}
        described.append({**named, "mean": mean, "ci95": half})
    for other in found.differences:
        mean, half = other.points.mean, other.points.high - other.points.mean
        both = " - ".join(reversed(other.inferences))
        rows.append(("second - first", other.shot, both, f"{mean:+.2f}", f"± {half:.2f}"))
        described.append({"run": "second - first", "shot": other.shot, "mean": mean, "ci95": half})
    classes = found.dataset.num_classes
    if json_:
        tree = {"episodes": found.episodes, "way": found.way, "classes": classes, "rows": described}
        say(json.dumps(tree))
        return
    of = f"{classes} classes, {len(found.dataset):,} images"
    say(f"{found.episodes:,} {found.way}-way episodes, {found.query} queries per class, of {of}")
    print_table(("", "shot", "inference", "accuracy %", "95% over episodes"), rows)


def _numbers(text: str) -> tuple[int, ...]:

    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise InputError(f"--shot takes numbers with commas between them, as in 1,5, not {text!r}") from None


@app.command()
def predict(
    run: Annotated[str, Argument(help="Run folder, or a pretrained backbone: efficientnet_lite0.")],
    files: Annotated[list[Path], Argument(help="Image files, or folders of them.")],
    support: Annotated[Path, Option(help="Folder with one folder of images per class.")],
    method: Method = None,
    views: Views = None,
    checkpoint: Checkpoint = "last",
    on_bad_image: RefuseOrSkip = "refuse",
    top: Annotated[int, Option(min=1, help="Number of classes to show.")] = 3,
    json_: Annotated[bool, Option("--json", help="Print one JSON object per line.")] = False,
    csv_: Annotated[bool, Option("--csv", help="Print a CSV with all probabilities.")] = False,
) -> None:
    """Classify pictures by the classes in the support folder, without training."""
    from sla.cli.display import TrainingDisplay
    from sla.cli.predict import choose_form, find_pictures, print_answers
    from sla.images.files import readable_rows
    from sla.runs.preprocessing import file_images
    from sla.tasks.fewshot.predict import adapt_to_folder, classify_files
    from sla.tasks.fewshot.run import open_tested

    form = choose_form(json_, csv_)
    model = open_tested(run, checkpoint, method, views).model
    paths = find_pictures(files)
    if on_bad_image == "skip":
        paths = [paths[row] for row in readable_rows(file_images(model.preprocessing, paths))]
    with TrainingDisplay(sys.stdout.isatty() and form == "table") as display:
        known = adapt_to_folder(model, support, on_bad_image, display)
        answers = classify_files(model, known, paths, display)
    if known.checked is not None and form == "table":
        right, count = known.checked
        say(f"{right} of {count} support pictures are classified correctly by the others")
    print_answers(paths, answers, known.classes, top, form)
