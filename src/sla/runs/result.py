"""What every result has: its checkpoints evaluated, cost, versions, and where it comes from."""

import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from sla import __version__
from sla.backbones.cost import count_flops, count_parameters
from sla.runs.checkpoint import WEIGHTS, check_file, find_checkpoint, step_of
from sla.runs.loop import Loop

Found = TypeVar("Found")


def evaluate_checkpoints(
    folder: Path, evaluate: Callable[[str, Path], Found]
) -> dict[str, tuple[int, Found]]:
    """For last and best: the step and what `evaluate(checkpoint, weights)` finds; the same step only once."""
    results: dict[str, tuple[int, Found]] = {}
    for checkpoint in ("last", "best"):
        path = find_checkpoint(folder / "checkpoint", checkpoint)
        if path is None:
            continue
        step = step_of(path)
        check_file(path / WEIGHTS)
        same = next((result for result in results.values() if result[0] == step), None)
        results[checkpoint] = same or (step, evaluate(checkpoint, path / WEIGHTS))
    return results


def describe_origin() -> dict[str, Any]:
    """What made a result, and when."""
    return {
        "versions": {"sla": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "commit": find_commit(),
        "command": _command(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def describe_cost(loop: Loop, seen: int, inferences: Sequence[str], num_views: int) -> dict[str, Any]:
    """What a run cost that has seen so many images, every view counted, and what its inference costs."""
    backbone: nn.Module = loop.model.backbone  # type: ignore[assignment]
    trained, forward = (count_flops(backbone, loop.config.model.input_shape(each)) for each in (True, False))
    return {
        "seconds": round(loop.position.seconds, 2),
        "iterations": loop.position.taken,
        "images_seen": seen,
        "training_flop": 3 * trained * seen,  # backward costs twice the forward pass
        "inference_flop": {name: forward * (num_views if name == "aggregated" else 1) for name in inferences},
        "parameters": count_parameters(loop.model),
        "peak_memory_bytes": peak_memory(loop.device),
        "device": str(loop.device),
        "threads": torch.get_num_threads(),
        "compiled": bool(getattr(loop.config.run, "compile", False)),
        "processes": loop.group.world_size,
    }


def peak_memory(device: torch.device) -> int | None:
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


def top1_scores(found: dict[str, dict[str, float]], prefix: str = "") -> dict[str, float]:
    """{"single": {"top1": 90.0, ...}} -> {"single": 90.0}, names with this prefix."""
    return {prefix + inference: scores["top1"] for inference, scores in found.items()}
