"""A dataset through a model in eval mode, batch by batch."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from sla.images.store import Dataset
from sla.progress import QUIET, Progress
from sla.runs.distributed import Group
from sla.sampling.loader import Batch, EvalLoader

ALONE = Group()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode, inside the block; each of its modules returns to its own mode after it."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def answering(model: nn.Module) -> Iterator[None]:
    """The model in eval mode but for batch norm, which normalises as in training and keeps its statistics.

    For answers in the middle of training: running statistics lag behind weights that change fast, and what
    a network says with those of some steps ago can be wrong with full confidence.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.training]
    tracking = [norm.track_running_stats for norm in norms]
    with evaluating(model):
        for norm in norms:
            norm.training, norm.track_running_stats = True, False
        try:
            yield
        finally:
            for norm, tracks in zip(norms, tracking, strict=True):
                norm.track_running_stats = tracks


def iterate_eval(
    model: nn.Module,
    dataset: Dataset,
    batch_size: int = 128,
    workers: int = 0,
    progress: Progress = QUIET,
    what: str = "evaluating images",
    group: Group = ALONE,
) -> Iterator[Batch]:
    """The images of a dataset on the model's device, while the model is in eval mode.

    `what` is the name of this pass for `progress`.
    """
    device, done, share = next(model.parameters()).device, 0, -(-len(dataset) // group.world_size)
    part = {"rank": group.rank, "world_size": group.world_size}
    with evaluating(model):
        for batch in EvalLoader(dataset, batch_size, workers=workers, device=device, **part):
            yield batch
            done += len(batch.images)
            progress.advance(what, min(done, share), share)
