"""What each kind of job does, in a folder of its own, and the record it writes."""

import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sla.disk import exclusive, replacing
from sla.progress import QUIET, Progress, StepsOnly
from sla.recipes.load import config_settings
from sla.reproduce.jobs import Job
from sla.reproduce.records import TABLE, Record, add_records
from sla.runs.result import describe_origin
from sla.tasks.classifier.run import Run
from sla.tasks.registry import make_config, with_values

CURVE_IMAGES = 5000  # of the training set, to compute the training accuracy


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
    start = time.monotonic()
    values = WORK[job.kind](job, out, progress)
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


def _session(job: Job, out: Path, progress: Progress, task: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train the run of a job, or resume it: its accuracies, and the columns of a record on its cost."""
    from sla.session import train

    folder = folder_of(job, out)
    # Not timed, as other runs are: a row can be run again to the same number, with the threads it names.
    fixed = {"run.compile": False} if task == "classifier" else {}
    settings = fixed | config_settings(job.settings) | {"run.seed": job.seed}
    config = make_config(with_values({"task": task}, settings))
    resume = (folder / "config.yaml").is_file()
    result = train(config, folder, resume=resume, progress=StepsOnly(progress)).result
    cost = {name: result["cost"][name] for name in ("training_flop", "seconds", "parameters")}
    machine = machine_name(result["cost"].get("threads"))
    return result["accuracies"], cost | {"commit": result["commit"], "machine": machine}


def _train(job: Job, out: Path, progress: Progress) -> dict[str, Any]:
    accuracies, cost = _session(job, out, progress, "classifier")
    scores = {checkpoint: _top1(found["test"]) for checkpoint, found in accuracies.items() if "test" in found}
    more = _top1(accuracies["last"].get("val", {}), "val_")
    return {"scores": scores, "more": more, **cost}


def _fewshot(job: Job, out: Path, progress: Progress) -> dict[str, Any]:
    """Train on episodes, then test: the test episodes are the same for every method and seed."""
    accuracies, cost = _session(job, out, progress, "fewshot")
    more: dict[str, float] = {}
    for shot, kinds in accuracies["last"]["test"].items():
        more |= _top1(kinds, f"{shot}-shot ")
    return {"more": more, **cost}


def _top1(found: dict[str, dict[str, float]], prefix: str = "") -> dict[str, float]:
    return {prefix + inference: scores["top1"] for inference, scores in found.items()}


def _ensemble(job: Job, out: Path, progress: Progress) -> dict[str, Any]:
    """The members' class logits, averaged."""
    from sla.compare.ensemble import evaluate_ensemble

    records, runs = _members(job, out)
    inference = job.settings["how"]
    outputs = evaluate_ensemble(runs, inference=inference, progress=progress)
    return {"scores": {"last": {inference: outputs.scores()["ensemble"]["top1"]}}, **_total(records)}


def _ten_crop(job: Job, out: Path, progress: Progress) -> dict[str, Any]:
    """The member on ten crops of each test image."""
    records, (run,) = _members(job, out)
    outputs = run.ten_crop(run.dataset(), progress=progress)
    return {"more": {"ten-crop": outputs.scores()["ten-crop"]["top1"]}, **_total(records)}


def _curves(job: Job, out: Path, progress: Progress) -> dict[str, Any]:
    """Accuracy on training and test images of every snapshot of the member."""
    from sla.factory import load
    from sla.sampling.protocols import limited
    from sla.tasks.classifier.evaluation import infer
    from sla.tasks.classifier.plan import make_plan

    records, (run,) = _members(job, out)
    plan = make_plan(run.config)
    assert plan.test is not None
    per_class = min(CURVE_IMAGES // plan.train.num_classes, int(plan.train.counts().min()))
    parts = {"train": limited(plan.train, max(per_class, 1)), "test": plan.test}
    curve: list[dict[str, float]] = []
    snapshots = sorted((run.folder / "snapshots").glob("*.safetensors"))
    for number, path in enumerate(snapshots, start=1):
        model = load(path)
        point: dict[str, float] = {"step": int(path.stem)}
        for name, dataset in parts.items():
            outputs = infer(model, dataset, run.pipeline, inferences=("single",))
            point[name] = outputs.scores()["single"]["top1"]
        curve.append(point)
        progress("evaluating snapshots", number, len(snapshots))
    last = curve[-1]
    more = {"curve": curve, "train": last["train"], "test": last["test"], "gap": last["train"] - last["test"]}
    return {"more": more, **_total(records)}


def _toy(job: Job, out: Path, progress: Progress) -> dict[str, Any]:
    from sla.reproduce.toy import toy_error

    return {"more": {"error": toy_error(job.settings)}}


WORK: dict[str, Callable[[Job, Path, Progress], dict[str, Any]]] = {
    "train": _train,
    "ensemble": _ensemble,
    "ten-crop": _ten_crop,
    "curves": _curves,
    "fewshot": _fewshot,
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
