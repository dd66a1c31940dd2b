"""What a finished run says of itself: accuracies, temperatures, cost, and where it comes from."""

import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from sla import __version__
from sla.backbones.cost import count_flops, count_parameters
from sla.factory import load
from sla.training.checkpoint import WEIGHTS, find_checkpoint
from sla.training.evaluation import infer
from sla.training.loop import Trainer
from sla.training.metrics import fit_temperature


def make_result(trainer: Trainer) -> dict[str, Any]:
    """Accuracies by kind of inference, last and best on val, and what they cost. Test chooses nothing."""
    plan = trainer.plan
    accuracies: dict[str, Any] = {}
    temperatures: dict[str, dict[str, float]] = {}
    for which in ("last", "best"):
        checkpoint = find_checkpoint(trainer.folder / "checkpoint", which)
        if checkpoint is None:
            continue
        model = load(checkpoint / WEIGHTS, trainer.device)
        accuracies[which] = {"step": model.about["step"]}
        for name, dataset in (("val", plan.val), ("test", plan.test)):
            if dataset is None:
                continue
            workers = trainer.config.data.workers or 0
            outputs = infer(model, dataset, trainer.eval_pipeline, workers=workers)
            if name == "val":
                fitted = {how: fit_temperature(x, outputs.targets) for how, x in outputs.logits.items()}
                temperatures[which] = fitted
            accuracies[which][name] = outputs.scores(temperatures.get(which))
    return {
        "headline": trainer.model.method.headline,
        "accuracies": accuracies,
        "temperatures": temperatures,
        "seed": trainer.config.run.seed,
        "images": {
            "train": len(plan.train),
            "val": len(plan.val) if plan.val else 0,
            "test": len(plan.test) if plan.test else 0,
        },
        "train_counts": plan.train.counts().tolist(),
        "cost": _cost(trainer),
        "versions": {"sla": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "commit": _commit(),
        "command": shlex.join(["sla", *sys.argv[1:]]),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _cost(trainer: Trainer) -> dict[str, Any]:
    config, method = trainer.config, trainer.model.method
    channels, size = len(config.model.mean or ()), config.model.resolution or 1
    forward = count_flops(trainer.model.backbone, (channels, size, size))
    views = min(config.method.views_per_step or len(method.views), len(method.views))
    seen = trainer.steps * trainer.batch_size * views
    return {
        "seconds": round(trainer.position.seconds, 2),
        "iterations": trainer.steps,
        "images_seen": seen,
        "training_flop": 3 * forward * seen,  # backward costs twice the forward pass
        "inference_flop": {
            how: forward * (len(method.views) if how == "aggregated" else 1) for how in method.kinds
        },
        "parameters": count_parameters(trainer.model),
        "peak_memory_bytes": _peak_memory(trainer.device),
        "device": str(trainer.device),
        "processes": trainer.group.world_size,
    }


def _peak_memory(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _commit() -> str | None:
    """The commit of the source tree this package runs from, where it is one; `-dirty` when changed since."""
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run([*words, "--exclude=*"], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
