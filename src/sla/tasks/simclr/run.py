"""A SimCLR run opened again: its features of other images, and its scores."""

from pathlib import Path

from torch import Tensor

from sla.images.store import Dataset
from sla.progress import QUIET, Progress
from sla.runs.run import OpenedRun, ScoreTable
from sla.tasks.simclr.config import SimCLRConfig
from sla.tasks.simclr.model import SimCLRModel, load_model
from sla.tasks.simclr.scores import KNN, LINEAR, embed

NAMES = {KNN: "nearest neighbours", LINEAR: "linear classifier"}
SPLITS = {"val": "held out", "test": "test"}


class SimCLRRun(OpenedRun[SimCLRConfig, SimCLRModel]):
    """A finished or stopped run with the model of a checkpoint: last, or best by its nearest neighbours."""

    task = "simclr"
    config_class = SimCLRConfig

    def _load_model(self, path: Path, device: str) -> SimCLRModel:
        return load_model(path, device)

    def score_table(self) -> ScoreTable:
        """A row for each checkpoint, split and way to judge features."""
        rows = [
            (f"{checkpoint}, {SPLITS[split]}", NAMES[kind], f"{scores['top1']:.2f}")
            for checkpoint, found in self.result["accuracies"].items()
            for split, kinds in found.items()
            if split in SPLITS
            for kind, scores in kinds.items()
        ]
        return ScoreTable(("features", "judged by", "accuracy %"), rows)

    def features(self, dataset: Dataset, progress: Progress = QUIET) -> Tensor:
        """The features of every image at length 1, (n, D), on the CPU."""
        workers = self.config.data.workers or 0
        return embed(
            self.model, dataset, self.model.preprocessing.eval_pipeline(), workers=workers, progress=progress
        )
