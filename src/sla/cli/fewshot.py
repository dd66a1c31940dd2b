"""`sla fewshot`: a few pictures of each of a few things, then the next one."""

import sys
import warnings
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
    from sla.cli.settings import choose_out, make_tree
    from sla.tasks.fewshot.config import FewShotConfig, make_fewshot_config
    from sla.tasks.fewshot.session import train_fewshot

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
    tree = make_tree(FewShotConfig, given, assign, config)
    settled = make_fewshot_config(tree, str(config) if config else "configuration")
    out = choose_out(out, resume, settled.data.source, "-fewshot")
    with TrainingDisplay(sys.stdout.isatty()) as display:
        run = train_fewshot(
            settled, out, resume=resume, say=display.say, watch=display.watch, progress=display.reading
        )
    print(f"run: {run.folder}")
    rows = [
        (f"{checkpoint}, {shot_}-shot", kind, f"{scores['top1']:.2f} ± {scores['ci95']:.2f}")
        for checkpoint, found in run.result["accuracies"].items()
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
    shot: Annotated[str | None, Option(help="Shots, as in 1,5; by default those of the run.")] = None,
    way: Annotated[
        int | None, Option(min=2, help="Classes of an episode; those of the run by default.")
    ] = None,
    query: Annotated[
        int | None, Option(min=1, help="Query images of each class; as the run, or what is left.")
    ] = None,
    episodes: Annotated[int | None, Option(min=2, help="How many; as the run, 1,000 by default.")] = None,
    seed: Annotated[int, Option(help="Which episodes.")] = 0,
    method: Annotated[str | None, Option(help=f"For a pretrained backbone: {METHODS}.")] = None,
    views: Annotated[str | None, Option(help="For a pretrained backbone: none, rot4, ...")] = None,
    checkpoint: Annotated[str, Option(help="Checkpoint: last, or best on the validation classes.")] = "last",
    on_bad_image: Annotated[
        Literal["refuse", "skip"] | None, Option(help="refuse or skip; as the run did by default.")
    ] = None,
    json_: Annotated[bool, Option("--json", help="As JSON.")] = False,
) -> None:
    """Accuracy over many episodes of unseen classes with its interval; of two runs, the difference too."""
    import json

    from sla.cli.display import TrainingDisplay, print_table
    from sla.errors import InputError, SLAWarning
    from sla.runs.defaults import put, same_source
    from sla.tasks.fewshot.evaluate import episode_interval, paired_interval
    from sla.tasks.fewshot.run import FewShotRun, evaluate_episodes, open_tested, other_test_set

    if len(runs) > 2:
        raise InputError(f"one run, or two to compare, not {len(runs)}")
    if (method or views) and all(Path(name).is_dir() for name in runs):
        raise InputError(
            "a run has its own method and views: --method and --views are for pretrained backbones"
        )
    opened = [
        open_tested(name, checkpoint, *((None, None) if Path(name).is_dir() else (method, views)))
        for name in runs
    ]
    own = [tested.config.episodes for tested in opened]
    shots = _agreed("--shot", None if shot is None else _numbers(shot), [part.test_shots for part in own])
    given_way, way = way, _agreed("--way", way, [part.way for part in own])
    if not data or query is not None:
        query = _agreed("--query", query, [part.test_query for part in own])
    episodes = _agreed("--episodes", episodes, [part.test_episodes for part in own])
    with TrainingDisplay(sys.stdout.isatty() and not json_) as display:
        tests = []
        for tested in opened:
            if isinstance(tested, FewShotRun) and not tested.result:
                warnings.warn(f"{tested.name} has not ended: sla fewshot train --resume goes on", SLAWarning)
            if on_bad_image is not None:
                tested.config = put(tested.config, "data", on_bad_image=on_bad_image)
            if data:
                tests.append(other_test_set(tested, data, opened, display.reading))
            else:
                tests.append(tested.test_set(display.reading))
        alike = data or same_source(*(tested.config.data.source for tested in (opened[0], opened[-1])))
        if given_way is None and data:
            way = min(way, tests[0].num_classes)
        if query is None:
            least, asked = min(int(test.counts().min()) for test in tests), max(shots)
            if least <= asked:
                raise InputError(
                    f"the smallest class has {least} pictures: {asked} shots leave none to ask; lower --shot"
                )
            query = min(least - asked, 15)
        if not alike or len({(test.classes, len(test)) for test in tests}) > 1:
            raise InputError(
                f"{runs[0]} and {runs[1]} are tested on different images: say with --data on which"
            )
        found = [
            (
                tested.model.inferences,
                evaluate_episodes(
                    tested,
                    test,
                    shots=shots,
                    episodes=episodes,
                    way=way,
                    query=query,
                    seed=seed,
                    progress=display.reading,
                ),
            )
            for tested, test in zip(opened, tests, strict=True)
        ]
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
            json.dumps({"episodes": episodes, "way": way, "classes": tests[0].num_classes, "rows": described})
        )
        return
    of = f"{tests[0].num_classes} classes, {len(tests[0]):,} images"
    print(f"{episodes:,} {way}-way episodes, {query} queries a class, of {of}")
    print_table(("", "shot", "inference", "accuracy %", "95% over episodes"), rows)


def _numbers(text: str) -> tuple[int, ...]:
    from sla.errors import InputError

    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise InputError(f"--shot takes numbers with commas between them, as in 1,5, not {text!r}") from None


def _agreed(option: str, given: Any, own: list[Any]) -> Any:
    """What was given, or what the runs were set to, which must be the same: else nothing could be paired."""
    from sla.errors import InputError

    if given is None and len(set(own)) > 1:
        raise InputError(f"these runs were set to {own[0]} and {own[1]}: say {option}")
    return own[0] if given is None else given


@app.command()
def predict(
    run: Annotated[str, typer.Argument(help="A run's folder, or a pretrained backbone: efficientnet_lite0.")],
    files: Annotated[list[Path], typer.Argument(help="Pictures, or folders of them.")],
    support: Annotated[Path, Option(help="A folder with a folder of a few pictures for each thing.")],
    method: Annotated[str | None, Option(help=f"For a pretrained backbone: {METHODS}.")] = None,
    views: Annotated[str | None, Option(help="For a pretrained backbone: none, rot4, ...")] = None,
    checkpoint: Annotated[str, Option(help="Checkpoint: last, or best on the validation classes.")] = "last",
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
    from sla.images.files import readable_rows
    from sla.tasks.classifier.build import file_images
    from sla.tasks.fewshot.predict import adapt_to_folder, classify_files
    from sla.tasks.fewshot.run import open_tested

    form = choose_form(json_, csv_)
    model = open_tested(run, checkpoint, method, views).model
    paths = find_pictures(files)
    if on_bad_image == "skip":
        paths = [paths[row] for row in readable_rows(file_images(model.about, paths))]
    with TrainingDisplay(sys.stdout.isatty() and form == "table") as display:
        known = adapt_to_folder(model, support, partial(display.reading, "support"), on_bad_image)
        answers = classify_files(model, known, paths, partial(display.reading, "pictures"))
    if known.checked is not None and form == "table":
        print(f"{known.checked[0]} of {known.checked[1]} support pictures are told right by the others")
    print_answers(paths, answers, known.classes, top, form)
