"""Rows of metrics for TensorBoard."""

from collections.abc import Sequence
from pathlib import Path

from sla.errors import MissingExtraError


class Board:
    """TensorBoard's file in a folder: one, however often the run was resumed."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("run.tensorboard", "track") from None
        self._earlier = list(folder.glob("events.out.tfevents.*"))
        self._writer = SummaryWriter(folder)

    def start(self, rows: Sequence[dict[str, str]]) -> None:
        """Take over the rows so far, of metrics.csv; the files of earlier sessions are removed."""
        for row in rows:
            self.add(int(row["step"]), {name: float(cell) for name, cell in row.items() if cell})
        self._writer.flush()
        for path in self._earlier:
            path.unlink(missing_ok=True)

    def add(self, step: int, row: dict[str, float]) -> None:
        """A row of the training."""
        for name, value in row.items():
            if name != "step":
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
