"""Several runs on the same images: opening them, and finding what none of them has seen."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sla.anytime import AGREEMENT
from sla.datasets.objects import source_name
from sla.errors import InputError, listed, shown
from sla.images.storage import OnBadImage
from sla.images.store import Dataset, Splits
from sla.inference import check_inference
from sla.progress import QUIET, Progress
from sla.runs.defaults import same_source
from sla.runs.images_record import VAL
from sla.tasks.classifier.run import Run

ANYTIME = "anytime"


def open_runs(
    names: Sequence[str | Run],
    inference: str | None,
    checkpoint: str,
    agreement: float | None = None,
    progress: Progress = QUIET,
) -> tuple[list[Run], list[str]]:
    """The runs, one object per folder, and the inference of each; refused where they cannot be compared.

    `agreement`: that of anytime inference, which is then the default.
    """
    if len(names) < 2:
        raise InputError(
            "give two runs or more, or two inferences of one: sla compare RUN:single RUN:distilled"
        )
    opened: dict[Path, Run] = {}
    runs: list[Run] = []
    inferences: list[str] = []
    for name in names:
        folder, named = (name.folder, None) if isinstance(name, Run) else split_name(name)
        if isinstance(name, Run):
            opened.setdefault(folder.resolve(), name)
        run = opened.setdefault(folder.resolve(), opened.get(folder.resolve()) or Run(folder, checkpoint))
        own = named or inference or (run.headline if agreement is None else ANYTIME)
        if own == ANYTIME and (agreement is not None or run.model.anytime_rule is None):
            run.use_agreement(AGREEMENT if agreement is None else agreement, progress)
        try:
            check_inference(own, run.model.inferences)
        except InputError as error:
            raise InputError(f"{shown(folder)}: {error}; for one run alone, RUN:INFERENCE") from None
        if (run, own) in zip(runs, inferences, strict=True):
            raise InputError(
                f"{shown(folder)}, {own} inference, is there twice: name another run, or another inference "
                "of it as RUN:INFERENCE"
            )
        check_labels(runs[0] if runs else run, run)
        runs.append(run)
        inferences.append(own)
    if agreement is not None and ANYTIME not in inferences:
        raise InputError(
            f"--agreement is for anytime inference, not {' and '.join(dict.fromkeys(inferences))}"
        )
    return runs, inferences


def split_name(name: str) -> tuple[Path, str | None]:
    """`runs/a:single` -> (runs/a, single); a folder that is there with this very name is that folder."""
    folder, colon, inference = name.rpartition(":")
    return (Path(name), None) if not colon or Path(name).exists() else (Path(folder), inference)


def check_labels(first: Run, run: Run) -> None:
    """Refuse two runs that do not have the same classes; their order may differ."""
    ours, theirs = set(first.classes), set(run.classes)
    if ours != theirs:
        only = [shown(name) for name in sorted(ours ^ theirs)]
        raise InputError(
            f"{shown(first.folder)} and {shown(run.folder)} have different label sets "
            f"({len(ours):,} and {len(theirs):,} classes; not in both: {listed(only)})"
        )


class SharedImages:
    """For each run the same images, in the same order, at the size at which it wants them."""

    def __init__(
        self,
        runs: Sequence[Run],
        data: Any,
        on_bad_image: OnBadImage | None,
        progress: Progress,
    ) -> None:
        self.on_bad_image, self.progress = on_bad_image, progress
        self.notes = [run.unfinished for run in runs if run.unfinished]
        self.loaded: dict[object, Splits] = {}
        first, self.split = runs[0], ""
        name = shown(source_name(first.config.data.source if data is None else data))
        self.what = f"images of {name}" if data is not None else "test images"
        found = {run: self._given(run, data) if data is not None else self._own(run, first) for run in runs}
        if self.split == VAL:
            self.notes.append(
                "This data has no test images. These were held out: no run trained on them, but they chose "
                "checkpoints and temperatures."
            )
        names = {run: [dataset.name(i) for i in range(len(dataset))] for run, dataset in found.items()}
        common = set(names[first]).intersection(*names.values())
        wanted = [name for name in dict.fromkeys(names[first]) if name in common]
        if not wanted:
            raise InputError(
                f"no image of {name} can be used for all of these runs: "
                "none was held out by each; name other data by --data"
            )
        if len(wanted) < len(names[first]):
            self.notes.append(f"{len(wanted):,} of {len(names[first]):,} {self.what} are common to all runs.")
        self.of = {}
        for run, dataset in found.items():
            place = {name: i for i, name in enumerate(names[run])}
            self.of[run] = dataset.subset([place[name] for name in wanted])

    def _own(self, run: Run, first: Run) -> Dataset:
        """What the run has not seen of the first run's data."""
        source = first.config.data.source
        if not same_source(run.config.data.source, source):
            self.notes.append(
                f"{shown(run.folder)} was trained on other data, {shown(source_name(run.config.data.source))}"
                + (": whether it has seen these images there is not known." if run.record is None else ".")
            )
            return self._given(run, source)
        # A run that has just ended has them in memory.
        splits = run.splits or run.given or self._splits(run, source)
        found = run.find_images(None, self.on_bad_image, self.progress, splits)
        if found is None:
            raise InputError(
                f"{shown(source)} has no test images, and {shown(run.folder)} held none out: name other "
                "data by --data"
            )
        self.what, self.split = found.what, found.split
        self.notes += found.notes
        return found.dataset

    def _given(self, run: Run, data: Any) -> Dataset:
        found = run.find_images(data, self.on_bad_image, self.progress, self._splits(run, data))
        assert found is not None  # named data has images
        self.notes += found.notes
        return found.dataset

    def _splits(self, run: Run, data: Any) -> Splits:
        """The data at the size of this run; what several runs read alike is read once."""
        own = run.config.data
        key = (
            data if isinstance(data, str | Path) else id(data),
            own.root,
            own.stored_size,
            own.on_bad_image,
        )
        if key not in self.loaded:
            self.loaded[key] = run.load_splits(data, self.on_bad_image, self.progress)
        return self.loaded[key]
