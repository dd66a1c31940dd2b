"""What each kind of job does, in a folder of its own, and the record it writes."""

import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sla.augment.flips import FLIPS
from sla.datasets.catalogue import CATALOGUE
from sla.disk import exclusive, replacing
from sla.progress import QUIET, Progress, StepsOnly
from sla.recipes.load import Settings, config_settings
from sla.reproduce.jobs import Job, growth_of
from sla.reproduce.records import TABLE, Record, add_records
from sla.runs.config import TrainingConfig
from sla.runs.result import describe_origin
from sla.tasks.classifier.run import Run
from sla.tasks.registry import TASKS, make_config, with_values


def folder_of(job: Job, out: Path) -> Path:
    """The folder of a job: its run, or its record alone."""
    return out / "runs" / job.key


def run_job(job: Job, out: Path, progress: Progress = QUIET, wait: bool = True) -> Record:
    """Run the job, or resume it where it was stopped; its row is in the table before this returns.

    A job is run by one process at a time: the others wait, or raise BlockingIOError if `wait` is False.
    A finished job is not run again.
    """
    with exclusive(out / "runs" / f".{job.key}.lock", wait=wait):
        record = read_finished(job, out) or _run(job, out, progress)
    add_records(out / TABLE, [record])
    return record


def _run(job: Job, out: Path, progress: Progress) -> Record:
    folder = folder_of(job, out)
    start, cpu_start = time.monotonic(), time.process_time()
    values = WORK.get(job.kind, _train)(job, out, progress)
    origin = {"machine": machine_name(), **describe_origin()}
    del origin["command"]
    record = Record(
        key=job.key,
        kind=job.kind,
        scale=job.scale,
        label=job.label,
        seed=job.seed,
        settings=dict(job.settings),
        members=[member.key for member in job.members],
        core_seconds=round(time.process_time() - cpu_start, 2),
        **origin | {"seconds": round(time.monotonic() - start, 2)} | values,
    )
    with replacing(folder / "record.json") as file:
        file.write((record.model_dump_json(indent=2) + "\n").encode())
    return record


def read_finished(job: Job, out: Path) -> Record | None:
    """The record of a job that was finished in this folder."""
    path = folder_of(job, out) / "record.json"
    try:
        return Record.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # missing, or damaged: the job resumes from its folder
        return None


def _train(job: Job, out: Path, progress: Progress) -> dict[str, Any]:
    """Train the run of a job, or resume it. Its kind is its task; a classifier's is called `train`."""
    if job.kind == "train":
        return _run_classifier(job, {}, out, progress)
    settings = config_settings(job.settings) | {"run.seed": job.seed}
    return _run_session(make_config(with_values({"task": job.kind}, settings)), job, out, progress)


def _run_classifier(job: Job, more: Settings, out: Path, progress: Progress) -> dict[str, Any]:
    # Not timed, as other runs are: a row can be run again to the same number, with the threads it names.
    settings = {"run.compile": False} | config_settings(job.settings) | {"run.seed": job.seed} | more
    return _run_session(make_config(with_values({"task": "classifier"}, settings)), job, out, progress)


def _distil(job: Job, out: Path, progress: Progress) -> dict[str, Any]:
    """Train a student of the member's aggregated answer; its cost has that of its teacher."""
    from sla.tasks.classifier.distil import configure_student

    _, (teacher,) = _members(job, out)
    given = dict(job.settings) | {"run.seed": job.seed}
    return _run_session(configure_student(teacher.folder, given), job, out, progress)


def _finetune(job: Job, out: Path, progress: Progress) -> dict[str, Any]:
    """Train a classifier from the member's weights; its cost has that of the pre-training."""
    (first,) = job.members
    before = run_job(first, out)
    weights = {"model.weights": str(folder_of(first, out).absolute())}
    found = _run_classifier(job, weights, out, progress)
    costs = {name: (getattr(before, name) or 0) + found[name] for name in ("training_flop", "seconds")}
    return found | costs


def _grow(job: Job, out: Path, progress: Progress) -> dict[str, Any]:
    """Add classes to the member, several times: the record is of the last run, `growth` of each."""
    from sla.tasks.classifier.grow import configure_growth

    _, (first,) = _members(job, out)
    own = {key: value for key, value in job.settings.items() if key != "times"}
    folder, source, found, growth = first.folder, first.config.data.source, dict[str, Any](), []
    each, known = growth_of(first.model.num_classes, CATALOGUE[source].num_classes, job.settings["times"])
    for number, total in enumerate(known, start=1):
        given = own | {"run.seed": job.seed, "data.classes": f"{total}-{total + each - 1}"}
        config = configure_growth(folder, source, given)
        folder = folder_of(job, out) / str(number)
        found = _run_session(config, job, out, progress, folder)
        names = ("single", "aggregated", "old_single", "old_aggregated", "new_single", "new_aggregated")
        scores = found["more"] | found["scores"]["last"]
        growth.append({"classes": total + each, **{name: scores[name] for name in names if name in scores}})
    return found | {"more": found["more"] | {"growth": growth}}


def _run_session(
    config: TrainingConfig, job: Job, out: Path, progress: Progress, folder: Path | None = None
) -> dict[str, Any]:
    from sla.session import train

    folder = folder or folder_of(job, out)
    resume = (folder / "config.yaml").is_file()
    run = train(config, folder, resume=resume, progress=StepsOnly(progress))
    cost = {name: run.result["cost"][name] for name in ("training_flop", "seconds", "parameters")}
    cost |= {"commit": run.result["commit"], "machine": machine_name(run.result["cost"].get("threads"))}
    return {**TASKS[config.task].record(run), **cost}


def _ensemble(job: Job, out: Path, progress: Progress) -> dict[str, Any]:
    """The members' class logits, averaged."""
    from sla.compare.ensemble import evaluate_ensemble

    records, runs = _members(job, out)
    inference = job.settings["inference"]
    outputs = evaluate_ensemble(runs, inference=inference, progress=progress)
    return {"scores": {"last": {inference: outputs.scores()["ensemble"]["top1"]}}, **_total(records)}


def _averaged(job: Job, out: Path, progress: Progress) -> dict[str, Any]:
    """The member on ten crops of each test image, or on the image and its mirror image."""
    records, (run,) = _members(job, out)
    evaluate = {"ten-crop": run.ten_crop, FLIPS: run.flips}[job.kind]
    outputs = evaluate(run.dataset(), job.settings.get("inference"), progress=progress)
    return {"more": {job.kind: outputs.scores()[job.kind]["top1"]}, **_total(records)}


def _curves(job: Job, out: Path, progress: Progress) -> dict[str, Any]:
    """Accuracy on training and test images of every snapshot of the member."""
    from sla.factory import load
    from sla.tasks.classifier.evaluation import infer
    from sla.tasks.classifier.plan import make_plan
    from sla.tasks.classifier.record import some_training_images

    records, (run,) = _members(job, out)
    plan = make_plan(run.config)
    assert plan.test is not None
    parts = {"train": some_training_images(plan.train), "test": plan.test}
    curve: list[dict[str, float]] = []
    snapshots = sorted((run.folder / "snapshots").glob("*.safetensors"))
    for number, path in enumerate(snapshots, start=1):
        model = load(path)
        point: dict[str, float] = {"step": int(path.stem)}
        for name, dataset in parts.items():
            outputs = infer(model, dataset, run.pipeline, inferences=("single",))
            point[name] = outputs.scores()["single"]["top1"]
        curve.append(point)
        progress.advance("evaluating snapshots", number, len(snapshots))
    last = curve[-1]
    more = {"curve": curve, "train": last["train"], "test": last["test"], "gap": last["train"] - last["test"]}
    return {"more": more, **_total(records)}


def _toy(job: Job, out: Path, progress: Progress) -> dict[str, Any]:
    from sla.reproduce.toy import toy_error

    return {"more": {"error": toy_error(job.settings)}}


# What is not here is the training of a task.
WORK: dict[str, Callable[[Job, Path, Progress], dict[str, Any]]] = {
    "ensemble": _ensemble,
    "ten-crop": _averaged,
    "flips": _averaged,
    "distil": _distil,
    "finetune": _finetune,
    "grow": _grow,
    "curves": _curves,
    "toy": _toy,
}


def _total(records: list[Record]) -> dict[str, Any]:
    flop = sum(record.training_flop or 0 for record in records)
    return {"training_flop": flop, "parameters": sum(record.parameters or 0 for record in records)}


def _members(job: Job, out: Path) -> tuple[list[Record], list[Run]]:
    """The runs that the job evaluates; one whose folder is missing is trained here."""
    records = [run_job(member, out) for member in job.members]
    return records, [Run(folder_of(member, out)) for member in job.members]


def machine_name(threads: int | None = None) -> str:
    """What a record calls the machine: its GPU, or its processor and threads, by default those in use."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    threads = threads or torch.get_num_threads()
    return f"{platform.machine()}, {threads} thread{'s' if threads > 1 else ''}"
