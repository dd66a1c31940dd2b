"""What a finished run says of itself: accuracies, temperatures, cost, and where it comes from."""

import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sla import __version__
from sla.backbones.cost import count_flops, count_parameters
from sla.factory import load
from sla.runs.checkpoint import WEIGHTS, find_checkpoint
from sla.runs.loop import Loop
from sla.runs.metrics import cautious_temperature
from sla.stats import share
from sla.tasks.classifier.evaluation import infer
from sla.tasks.classifier.trainer import Trainer
from sla.tasks.classifier.view_accuracy import advise, measure_views


def make_result(trainer: Trainer) -> dict[str, Any]:
    """Accuracies by kind of inference, last and best on val, and what they cost. Test chooses nothing."""
    plan = trainer.plan
    accuracies: dict[str, Any] = {}
    temperatures: dict[str, dict[str, float]] = {}
    for checkpoint in ("last", "best"):
        found_at = find_checkpoint(trainer.folder / "checkpoint", checkpoint)
        if found_at is None:
            continue
        model = load(found_at / WEIGHTS, trainer.device)
        accuracies[checkpoint] = {"step": model.about["step"]}
        for name, dataset in (("val", plan.val), ("test", plan.test)):
            if dataset is None:
                continue
            workers = trainer.config.data.workers or 0
            outputs = infer(model, dataset, trainer.eval_pipeline, workers=workers)
            if name == "val":
                fitted = {
                    inference: cautious_temperature(x, outputs.targets)
                    for inference, x in outputs.logits.items()
                }
                temperatures[checkpoint] = fitted
            accuracies[checkpoint][name] = outputs.scores(temperatures.get(checkpoint))
    return {
        "headline": trainer.model.method.headline,
        "accuracies": accuracies,
        "temperatures": temperatures,
        "view_accuracy": _view_accuracy(trainer, accuracies),
        "seed": trainer.config.run.seed,
        "images": {
            "train": len(plan.train),
            "val": len(plan.val) if plan.val else 0,
            "test": len(plan.test) if plan.test else 0,
        },
        "train_counts": plan.train.counts().tolist(),
        "cost": _cost(trainer),
        **describe_origin(),
    }


def describe_origin() -> dict[str, Any]:
    """What made a result, and when."""
    return {
        "versions": {"sla": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "commit": find_commit(),
        "command": _command(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _view_accuracy(trainer: Trainer, accuracies: dict[str, Any]) -> dict[str, Any] | None:
    """How well the last checkpoint tells its views on held-out images; None where it does not learn to."""
    plan, name = trainer.plan, "val" if trainer.plan.val is not None else "test"
    found_at = find_checkpoint(trainer.folder / "checkpoint", "last")
    dataset = plan.val or plan.test
    if found_at is None or dataset is None:
        return None
    model = load(found_at / WEIGHTS, trainer.device)
    workers = trainer.config.data.workers or 0
    found = measure_views(model, dataset, trainer.eval_pipeline, workers=workers)
    if found is None:
        return None
    right = accuracies["last"][name][model.method.headline]["top1"] * len(dataset) / 100
    learnt = share(right, len(dataset)).low > 100 / len(plan.train.classes)
    return {**found.summary(), "on": name, "advice": advise(found, learnt=learnt)}


def _cost(trainer: Trainer) -> dict[str, Any]:
    method, count = trainer.model.method, trainer.config.method.views_per_step
    views = min(count or len(method.views), len(method.views))
    seen = trainer.steps * trainer.batch_size * views
    return describe_cost(trainer, seen, method.inferences, len(method.views))


def describe_cost(loop: Loop, seen: int, kinds: Sequence[str], num_views: int) -> dict[str, Any]:
    """What a run cost that has seen so many images, every view counted, and what its inference costs."""
    model, size = loop.config.model, loop.config.model.resolution or 1
    backbone: nn.Module = loop.model.backbone  # type: ignore[assignment]
    forward = count_flops(backbone, (len(model.mean or ()), size, size))
    return {
        "seconds": round(loop.position.seconds, 2),
        "iterations": loop.steps,
        "images_seen": seen,
        "training_flop": 3 * forward * seen,  # backward costs twice the forward pass
        "inference_flop": {kind: forward * (num_views if kind == "aggregated" else 1) for kind in kinds},
        "parameters": count_parameters(loop.model),
        "peak_memory_bytes": _peak_memory(loop.device),
        "device": str(loop.device),
        "processes": loop.group.world_size,
    }


def _peak_memory(device: torch.device) -> int | None:
    """The most memory that this process has held so far, in bytes; on a GPU, the GPU's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _command() -> str:
    """What was typed: a command of `sla`, or the script that called us."""
    ours = Path(sys.argv[0]).stem in ("sla", "__main__")
    return shlex.join(["sla", *sys.argv[1:]] if ours else ["python", *sys.argv])


def find_commit() -> str | None:
    """The commit of the source tree this package runs from, where it is one; `-dirty` when changed since."""
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run([*words, "--exclude=*"], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
