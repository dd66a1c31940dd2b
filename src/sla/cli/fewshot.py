"""`sla fewshot`: a few pictures of each of a few things, then the next one."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

app = typer.Typer(
    help="A few labelled pictures of each of a few new things, then the next one.", no_args_is_help=True
)
METHODS = "protonet, ridge, r2d2 or svm"
Option = typer.Option


@app.command()
def train(
    data: Annotated[
        str | None, typer.Argument(help="cifar-fs, fc100, mini-imagenet, or your own folder.")
    ] = None,
    out: Annotated[Path | None, Option(help="The run's folder; runs/NAME-fewshot by default.")] = None,
    method: Annotated[str | None, Option(help=f"{METHODS}. Default: ridge.")] = None,
    views: Annotated[str | None, Option(help="rot4 (default), rgb3, ...; none: the plain method.")] = None,
    backbone: Annotated[str | None, Option(help="convnet4, efficientnet_lite0, timm:NAME, ...")] = None,
    weights: Annotated[str | None, Option(help="none, pretrained, a file, or a run's folder.")] = None,
    way: Annotated[int | None, Option(help="Classes of an episode. Default: 5.")] = None,
    shot: Annotated[int | None, Option(help="Support images of each class. Default: 5.")] = None,
    query: Annotated[int | None, Option(help="Query images of each class. Default: 6.")] = None,
    augment: Annotated[str | None, Option(help="As in 'crop(4), jitter(0.4), flip'.")] = None,
    iterations: Annotated[int | None, Option(help="How long, in steps. Default: 2,000.")] = None,
    seed: Annotated[int | None, Option(help="Everything random in training follows from it.")] = None,
    on_bad_image: Annotated[str | None, Option(help="refuse or skip.")] = None,
    config: Annotated[Path | None, Option(help="A YAML file; options given here come before it.")] = None,
    assign: Annotated[list[str] | None, Option("--set", help="Any key, as in episodes.per_step=8.")] = None,
    resume: Annotated[bool, Option("--resume", help="Go on with the run in --out.")] = False,
) -> None:
    """Learn to learn from few pictures, on episodes; tested on classes that training never saw."""
    from sla.cli.display import TrainingDisplay, print_table
    from sla.errors import InputError
    from sla.fewshot.config import FewShotConfig, make_fewshot_config
    from sla.fewshot.session import train_fewshot
    from sla.training.config import parse_assignment, read_config, with_values

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
    named = {key: value for key, value in given.items() if value is not None}
    named |= dict(parse_assignment(text) for text in assign or [])
    tree = with_values(read_config(config) if config else {}, named, FewShotConfig)
    if resume and out is None:
        raise InputError("--resume needs the run's folder: --out runs/NAME")
    settled = make_fewshot_config(tree, str(config) if config else "configuration")
    if out is None:
        out = Path("runs") / f"{Path(settled.data.source).expanduser().absolute().stem or 'run'}-fewshot"
    with TrainingDisplay(sys.stdout.isatty()) as display:
        run = train_fewshot(
            settled, out, resume=resume, say=display.say, watch=display.watch, progress=display.reading
        )
    print(f"run: {run.folder}")
    rows = [
        (f"{which}, {shot_}-shot", kind, f"{scores['top1']:.2f} ± {scores['ci95']:.2f}")
        for which, found in run.result["accuracies"].items()
        for shot_, kinds in found["test"].items()
        for kind, scores in kinds.items()
    ]
    if rows:
        print_table(("test classes", "inference", "accuracy %"), rows)


@app.command()
def evaluate(
    runs: Annotated[
        list[str], typer.Argument(help="A run's folder, or two; or a pretrained backbone's name.")
    ],
    data: Annotated[str | None, Option(help="Other data than the run's own test classes.")] = None,
    shot: Annotated[str, Option(help="Shots, as in 1,5.")] = "1,5",
    way: Annotated[
        int | None, Option(min=2, help="Classes of an episode; those of the run by default.")
    ] = None,
    query: Annotated[int | None, Option(min=1, help="Query images of each class. Default: 15.")] = None,
    episodes: Annotated[int, Option(min=2, help="How many.")] = 1000,
    seed: Annotated[int, Option(help="Which episodes.")] = 0,
    method: Annotated[str | None, Option(help=f"For a pretrained backbone: {METHODS}.")] = None,
    views: Annotated[str | None, Option(help="For a pretrained backbone: none, rot4, ...")] = None,
    which: Annotated[str, Option(help="Checkpoint: last, or best on the validation classes.")] = "last",
    on_bad_image: Annotated[
        Literal["refuse", "skip"] | None, Option(help="refuse or skip; as the run did by default.")
    ] = None,
    json_: Annotated[bool, Option("--json", help="As JSON.")] = False,
) -> None:
    """Accuracy over many episodes of unseen classes with its interval; of two runs, the difference too."""
    import json

    from sla.cli.display import TrainingDisplay, print_table
    from sla.errors import InputError
    from sla.fewshot.evaluate import episode_interval, paired_interval
    from sla.fewshot.run import evaluate_episodes, open_tested, other_test_set

    try:
        shots = [int(part) for part in shot.split(",")]
    except ValueError:
        raise InputError(f"--shot takes numbers with commas between them, as in 1,5, not {shot!r}") from None
    if len(runs) > 2:
        raise InputError(f"one run, or two to compare, not {len(runs)}")
    found, sets = [], []
    with TrainingDisplay(sys.stdout.isatty() and not json_) as display:
        opened = [
            open_tested(name, which, *((None, None) if Path(name).is_dir() else (method, views)))
            for name in runs
        ]
        for tested in opened:
            if on_bad_image is not None:
                own = tested.config.data.model_copy(update={"on_bad_image": on_bad_image})
                tested.config = tested.config.model_copy(update={"data": own})
            classes = way or tested.config.episodes.way
            test = (
                other_test_set(tested, data, opened, display.reading)
                if data
                else tested.test_set(display.reading)
            )
            sets.append((test.classes, len(test), classes))
            accuracies = evaluate_episodes(
                tested,
                test,
                shots=shots,
                episodes=episodes,
                way=classes,
                query=query,
                seed=seed,
                progress=display.reading,
            )
            found.append((tested.model.kinds, accuracies))
    if len(set(sets)) > 1:
        raise InputError(f"{runs[0]} and {runs[1]} are tested on different classes: say with --data on which")
    rows, described = [], []
    for name, (kinds, accuracies) in zip(runs, found, strict=True):
        for number in shots:
            for kind in kinds:
                mean, low, high = episode_interval(accuracies[number][kind])
                rows.append((name, number, kind, f"{mean:.2f}", f"± {mean - low:.2f}"))
                described.append(
                    {"run": name, "shot": number, "inference": kind, "mean": mean, "ci95": high - mean}
                )
    if len(found) == 2:
        for number in shots:
            (first, a), (second, b) = ((kinds[-1], every[number]) for kinds, every in found)
            mean, low, high = paired_interval(b[second], a[first])
            rows.append(
                ("second - first", number, f"{second} - {first}", f"{mean:+.2f}", f"± {mean - low:.2f}")
            )
            described.append({"run": "second - first", "shot": number, "mean": mean, "ci95": high - mean})
    if json_:
        print(
            json.dumps(
                {"episodes": episodes, "way": sets[0][2], "classes": len(sets[0][0]), "rows": described}
            )
        )
        return
    print(f"{episodes:,} {sets[0][2]}-way episodes of {len(sets[0][0])} classes, {sets[0][1]:,} images")
    print_table(("", "shot", "inference", "accuracy %", "95%"), rows)


@app.command()
def predict(
    run: Annotated[str, typer.Argument(help="A run's folder, or a pretrained backbone: efficientnet_lite0.")],
    files: Annotated[list[Path], typer.Argument(help="Pictures, or folders of them.")],
    support: Annotated[Path, Option(help="A folder with a folder of a few pictures for each thing.")],
    method: Annotated[str | None, Option(help=f"For a pretrained backbone: {METHODS}.")] = None,
    views: Annotated[str | None, Option(help="For a pretrained backbone: none, rot4, ...")] = None,
    which: Annotated[str, Option(help="Checkpoint: last, or best on the validation classes.")] = "last",
    on_bad_image: Annotated[
        Literal["refuse", "skip"], Option(help="refuse, or skip what cannot be read, with a note.")
    ] = "refuse",
    top: Annotated[int, Option(min=1, help="How many classes to name.")] = 3,
    json_: Annotated[bool, Option("--json", help="One JSON object a line.")] = False,
    csv_: Annotated[bool, Option("--csv", help="A CSV with every class's probability.")] = False,
) -> None:
    """Which of the things in the support folder is on these pictures? No training."""
    from sla.cli.display import TrainingDisplay
    from sla.cli.predict import choose_form, find_pictures, print_answers
    from sla.data.files import readable_rows
    from sla.fewshot.predict import adapt_to_folder, classify_files, pictures
    from sla.fewshot.run import open_tested

    form = choose_form(json_, csv_)
    model = open_tested(run, which, method, views).model
    paths = find_pictures(files)
    if on_bad_image == "skip":
        paths = [paths[row] for row in readable_rows(pictures(model, paths))]
    with TrainingDisplay(sys.stdout.isatty() and form == "table") as display:
        known = adapt_to_folder(model, support, partial(display.reading, "support"), on_bad_image)
        answers = classify_files(model, known, paths, partial(display.reading, "pictures"))
    if known.checked is not None and form == "table":
        print(f"{known.checked[0]} of {known.checked[1]} support pictures are told right by the others")
    print_answers(paths, answers, known.classes, top, form)
