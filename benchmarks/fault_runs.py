"""The commands that are tried, where they run, and what an undisturbed run of each leaves."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fault_processes import Ended, Started, count_operations, differences, fingerprint

DATA = {"train": 10, "test": 4}  # digits per class
MODEL = '--set model.backbone=convnet4 --set model.options={"width":4} --set run.threads=1'
LOOP = "--set run.device=cpu --set run.checkpoint_every=2 --set run.evaluations=2 --set data.workers=0"
STEPS = "--set run.batch_size=8 --set run.compile=false --set run.iterations=6 --set data.cache=true"
EPISODES = "--way 2 --shot 1 --query 1 --set episodes.test_episodes=20 --set episodes.val_episodes=4"
TASKS = {  # the commands that are tried; DATA, its part TRAIN, FIRST (a finished run) and OUT are put in
    "classifier": f"train DATA --out OUT --method sla --set data.classes=0-3 {MODEL} {LOOP} {STEPS} "
    "--weights FIRST --set stages=features,train,distil",
    "classifier, averaged": f"train DATA --out OUT --set data.classes=0-3 {MODEL} {LOOP} {STEPS} "
    "--set optimizer.ema=0.9 --set run.snapshots=3",
    "fewshot": f"fewshot train TRAIN --out OUT --iterations 6 {EPISODES} --set episodes.test_query=2 "
    f"--set episodes.test_shots=[1] --set data.split_seed=1 {MODEL} {LOOP}",
    "simclr": f"pretrain DATA --out OUT --iterations 6 --batch-size 8 {MODEL} {LOOP}",
    "distill": "distill FIRST --out OUT --set run.iterations=6",
    "grow": "grow FIRST DATA --out OUT --classes 4-5 --keep 2 --set run.iterations=6",
    "reproduce": "reproduce table1 --scale smoke --seeds 1 --rows baseline,sla-si --columns cifar10 "
    "--out OUT",
}
FIRST = f"train DATA --out OUT --method sla --set data.classes=0-3 {MODEL} {LOOP} {STEPS}"
AGAIN = "train --resume --out OUT"
GROUP = "two processes"  # with the command of the classifier
QUICK = ("classifier, averaged", "fewshot")  # in `--quick`


@dataclass(frozen=True)
class Whole:
    """An undisturbed run: its files, CPU seconds, file operations, and the bytes it wrote."""

    files: dict[str, str]
    cpu: float
    operations: int
    size: int


@dataclass(frozen=True)
class Place:
    """Where the campaign works: pictures, a finished run, and undisturbed runs by task."""

    base: Path
    wholes: dict[str, Whole] = field(default_factory=dict)

    def words(self, text: str, folder: Path) -> list[str]:
        """A command, for a run in this folder."""
        data = self.base / "data"
        own = {
            "DATA": data,
            "TRAIN": data / "train",
            "FIRST": self.base / "first" / "out",
            "OUT": folder / "out",
        }
        return [str(own.get(word, word)) for word in text.split()]

    def first(self, task: str, folder: Path) -> list[str]:
        """What starts a run of the task."""
        return self.words(TASKS[task], folder)

    def again(self, task: str, folder: Path) -> list[str]:
        """What resumes it."""
        return self.first(task, folder) if task == "reproduce" else self.words(AGAIN, folder)


def set_up(base: Path, tasks: Sequence[str]) -> Place:
    """Make the pictures and the first run, and run every task twice: nothing but times may differ."""
    place = Place(base)
    _write_digits(base / "data")
    if any("FIRST" in TASKS[task] for task in tasks):
        in_order(Started(place.words(FIRST, base / "first"), partial(at_home, base / "first")).wait())
    for task in tasks:
        print(f"undisturbed: {task}", flush=True)
        folders = [base / f"{task}-{number}".replace(", ", "-") for number in (1, 2)]
        for folder in folders:
            folder.mkdir()
        _warm(place.first(task, folders[0]), folders[0])
        counter = base / f"{folders[1].name}.operations"
        ended = Started(place.first(task, folders[1]), partial(at_home, folders[1], counter=counter)).wait()
        in_order(ended)
        one, two = (fingerprint(folder / "out") for folder in folders)
        if wrong := differences(one, two):
            raise SystemExit(f"{task}: two undisturbed runs differ: {', '.join(wrong)}")
        size = sum(path.stat().st_size + 4096 for path in folders[1].rglob("*"))
        place.wholes[task] = Whole(two, ended.cpu, counter.stat().st_size, size)
    return place


def _write_digits(folder: Path) -> None:
    from PIL import Image

    from sla.datasets.load import load
    from sla.sampling.protocols import limited

    digits = load("digits")
    for split, count in DATA.items():
        some = limited(getattr(digits, split), count)
        for number, target in enumerate(some.targets):
            path = folder / split / str(target) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(some.read([number]).images[0, 0].numpy()).save(path)


def at_home(folder: Path, prepare: Callable[[], object] = lambda: None, counter: Path | None = None) -> None:
    """In a process: the caches go into this folder too."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["SLA_DATA"] = str(folder / "home")
    if counter is not None:
        count_operations(folder, counter)
    prepare()


def _warm(words: list[str], folder: Path) -> None:
    """Run a command in this process, so that those forked from it have imported everything."""
    from sla.cli import main

    at_home(folder)
    kept, sys.stdout = sys.stdout, open(os.devnull, "w")  # noqa: SIM115
    try:
        main(words)
    except SystemExit as end:
        if end.code:
            raise SystemExit(f"an undisturbed run failed: {' '.join(words)}") from None
    finally:
        sys.stdout = kept


def in_order(ended: Ended) -> None:
    if ended.code:
        raise SystemExit(f"an undisturbed run failed: {ended.errors}")


def stage_of(out: Path, whole: Whole) -> str:
    """How far a run was, by what is in its folder."""
    if any("record.json" in name for name in whole.files):
        records = sum("record.json" in name for name in whole.files)
        return "table" if len(list(out.glob("runs/*/record.json"))) == records else "runs"
    if (out / "result.json").exists():
        return "report"
    lasts = [name for name in whole.files if "/last-" in f"/{name}" and name.endswith("state.safetensors")]
    stages = {name.split("/")[0].replace("checkpoint", "train"): name for name in lasts}
    if (out / (stages.get("distil") or stages["train"])).exists():
        return "result"
    begun = {"distil": out / "distil", "train": out / "metrics.csv", "features": out / "features"}
    return next((name for name, path in begun.items() if path.exists()), "start")
