"""Does every run go on bit for bit after a fault, or say in one line what is wrong?

    python benchmarks/faults.py [--seed 0] [--jobs 2] [--quick] [--only FAULT] [--folder FOLDER]

Also `make faults`. Tiny runs of every task on the bundled digits are killed at random moments and at file
operations, get a full disk, a limit of file sizes, a read-only folder, other data, damaged checkpoints, or
lose one of two processes. Then they are resumed, and all files compared with those of an undisturbed run,
but for times. Writes results/faults.csv and the table in docs/trust.md; `--quick` writes nothing. Exit code 1
if a trial failed. A full disk needs the right to mount one, and is left out without it.
"""

import argparse
import multiprocessing
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

from fault_trials import (
    Ended,
    Started,
    count_operations,
    die_at_operation,
    differences,
    fingerprint,
)
from tables import Table

COUNTS = ("tried", "bit_for_bit", "one_line", "failed")
TABLE = Table("faults", "docs/trust.md", ("fault", "task", "stage", *COUNTS, "seed", "commit"))
NOBODY = 65534  # root may write anywhere: what a folder refuses is refused to this user
TIMEOUT = 10  # seconds that a process waits for one that is lost; torch's default is 30 minutes
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
QUICK = ("classifier", "fewshot")  # in `--quick`


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


@dataclass(frozen=True)
class Trial:
    """One fault in a run of a task, `share` of the way through it."""

    fault: str
    task: str
    seed: str
    share: float

    @property
    def stream(self) -> random.Random:
        """Its random numbers."""
        return random.Random(f"{self.seed} {self.fault} {self.task} {self.share}")


@dataclass(frozen=True)
class Outcome:
    """What came of a trial: the stage it hit, whether one line said so, and why it failed, if it did."""

    trial: Trial
    stage: str
    said: bool = False
    same: bool = False
    failed: str = ""


def set_up(base: Path, tasks: Sequence[str]) -> Place:
    """Make the pictures and the first run, and run every task twice: nothing but times may differ."""
    place = Place(base)
    _write_digits(base / "data")
    _in_order(Started(place.words(FIRST, base / "first"), partial(_at_home, base / "first")).wait())
    for task in tasks:
        print(f"undisturbed: {task}", flush=True)
        folders = [base / f"{task}-{number}".replace(", ", "-") for number in (1, 2)]
        for folder in folders:
            folder.mkdir()
        _warm(place.first(task, folders[0]), folders[0])
        counter = base / f"{folders[1].name}.operations"
        ended = Started(place.first(task, folders[1]), partial(_at_home, folders[1], counter=counter)).wait()
        _in_order(ended)
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


def _at_home(folder: Path, prepare: Callable[[], object] = lambda: None, counter: Path | None = None) -> None:
    """In a process: the caches go into this folder too."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["SLA_DATA"] = str(folder / "home")
    if counter is not None:
        count_operations(folder, counter)
    prepare()


def _warm(words: list[str], folder: Path) -> None:
    """Run a command in this process, so that those forked from it have imported everything."""
    from sla.cli import main

    _at_home(folder)
    kept, sys.stdout = sys.stdout, open(os.devnull, "w")  # noqa: SIM115
    try:
        main(words)
    except SystemExit as end:
        if end.code:
            raise SystemExit(f"an undisturbed run failed: {' '.join(words)}") from None
    finally:
        sys.stdout = kept


def _in_order(ended: Ended) -> None:
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


def go_on(place: Place, trial: Trial, folder: Path) -> tuple[str, bool]:
    """Resume, or start again where nothing is to resume; why that failed, and if it was refused first."""
    refused = False
    ended = Started(place.again(trial.task, folder), partial(_at_home, folder)).wait()
    if ended.one_line and not (folder / "out" / "config.yaml").exists():
        refused = True
        ended = Started(place.first(trial.task, folder), partial(_at_home, folder)).wait()
    if ended.code:
        return f"exit code {ended.code}: {ended.errors}", refused
    wrong = differences(fingerprint(folder / "out"), place.wholes[trial.task].files)
    return f"differs from an undisturbed run: {', '.join(wrong)}" if wrong else "", refused


def _kill_at_operation(place: Place, trial: Trial, folder: Path, share: float) -> None:
    number = int(share * place.wholes[trial.task].operations)
    prepare = partial(_at_home, folder, partial(die_at_operation, folder, number))
    Started(place.first(trial.task, folder), prepare).wait()


def _begun(place: Place, trial: Trial, folder: Path) -> str:
    """Kill a run that has a checkpoint and no result yet; its stage."""
    stream = trial.stream
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        _kill_at_operation(place, trial, folder, stream.uniform(0.2, 1.0))
        stage = stage_of(folder / "out", place.wholes[trial.task])
        if stage not in ("start", "report") and list((folder / "out").rglob("last-*/state.safetensors")):
            return stage
    raise SystemExit(f"{trial}: no run with a checkpoint")


def kill_at_moment(place: Place, trial: Trial, folder: Path) -> Outcome:
    """SIGKILL at a share of the run's CPU time."""
    whole = place.wholes[trial.task]
    started = Started(place.first(trial.task, folder), partial(_at_home, folder))
    while not started.kill_after(trial.share * whole.cpu):  # it was quicker this time
        started.wait()
        shutil.rmtree(folder)
        trial = replace(trial, share=0.9 * trial.share)
        started = Started(place.first(trial.task, folder), partial(_at_home, folder))
    started.wait()
    stage = stage_of(folder / "out", whole)
    failed, refused = go_on(place, trial, folder)
    return Outcome(trial, stage, refused, not failed, failed)


def kill_at_operation(place: Place, trial: Trial, folder: Path) -> Outcome:
    """SIGKILL right before a file operation."""
    _kill_at_operation(place, trial, folder, trial.share)
    stage = stage_of(folder / "out", place.wholes[trial.task])
    failed, refused = go_on(place, trial, folder)
    return Outcome(trial, stage, refused, not failed, failed)


def _refused_then_resumed(
    place: Place, trial: Trial, folder: Path, ended: Ended, repair: Callable[[], object]
) -> Outcome:
    """After a command under a fault: it ended well or in one line; without the fault the run goes on."""
    stage = stage_of(folder / "out", place.wholes[trial.task])
    repair()
    if ended.code and not ended.one_line:
        return Outcome(trial, stage, failed=f"exit code {ended.code}: {ended.errors}")
    failed, _ = go_on(place, trial, folder)
    return Outcome(trial, stage, ended.one_line, not failed, failed)


def _mount(*words: str) -> bool:
    found = shutil.which("mount") is not None
    return found and not subprocess.run(["mount", *words], capture_output=True, check=False).returncode


def can_mount(base: Path) -> bool:
    """Whether this user can make a disk of its own."""
    base.mkdir(parents=True, exist_ok=True)
    if not _mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", str(base)):
        return False
    subprocess.run(["umount", str(base)], check=True)
    return True


def fill_disk(place: Place, trial: Trial, folder: Path) -> Outcome:
    """A disk that is too small (ENOSPC)."""
    size = int(trial.share * place.wholes[trial.task].size) + 8192
    folder.mkdir(parents=True)
    if not _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)):
        raise SystemExit(f"cannot mount a disk at {folder}")
    try:
        ended = Started(place.first(trial.task, folder), partial(_at_home, folder)).wait()
        larger = partial(_mount, "-o", "remount,size=100m", str(folder))
        return _refused_then_resumed(place, trial, folder, ended, larger)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def limit_file_size(place: Place, trial: Trial, folder: Path) -> Outcome:
    """Files that may not grow beyond some bytes (EFBIG)."""
    size = int(64 * (place.wholes[trial.task].size / 64) ** trial.share)  # small ones more often
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
    ended = Started(place.first(trial.task, folder), partial(_at_home, folder, limit)).wait()
    return _refused_then_resumed(place, trial, folder, ended, lambda: None)


def read_only(place: Place, trial: Trial, folder: Path) -> Outcome:
    """A folder that became read-only before the run is resumed."""
    _kill_at_operation(place, trial, folder, trial.share)
    (folder / "home").mkdir(parents=True, exist_ok=True)
    _change_modes(folder, 0o555, 0o444)
    as_user = partial(os.setuid, NOBODY) if os.getuid() == 0 else lambda: None
    found = (folder / "out" / "config.yaml").exists()
    words = place.again(trial.task, folder) if found else place.first(trial.task, folder)
    ended = Started(words, partial(_at_home, folder, as_user)).wait()
    if not ended.code:
        return Outcome(trial, "", failed="it wrote into a read-only folder")
    return _refused_then_resumed(place, trial, folder, ended, partial(_change_modes, folder, 0o755, 0o644))


def _change_modes(folder: Path, folders: int, files: int) -> None:
    for path in [folder, *folder.rglob("*")]:
        path.chmod(folders if path.is_dir() else files)


def change_data(place: Place, trial: Trial, folder: Path, gone: bool) -> Outcome:
    """A picture that is gone when the run is resumed, or another one in its place."""
    own = Place(folder / "changed", place.wholes)
    shutil.copytree(place.base / "data", own.base / "data", copy_function=os.link)
    (own.base / "first").symlink_to(place.base / "first")
    stage = _begun(own, trial, folder / "run")
    used = [path for path in sorted((own.base / "data").rglob("*.png")) if path.parent.name in "0123"]
    picture, other = trial.stream.sample(used, 2)
    kept = picture.read_bytes()
    picture.unlink()
    if not gone:
        picture.write_bytes(_brighter(other))
    ended = Started(own.again(trial.task, folder / "run"), partial(_at_home, folder / "run")).wait()
    if not ended.one_line:
        return Outcome(trial, stage, failed=f"exit code {ended.code} with other data: {ended.errors}")
    picture.unlink(missing_ok=True)
    picture.write_bytes(kept)
    ended = Started(own.again(trial.task, folder / "run"), partial(_at_home, folder / "run")).wait()
    found, whole = fingerprint(folder / "run" / "out"), place.wholes[trial.task].files
    wrong = [name for name in differences(found, whole) if name.endswith("weights.safetensors")]
    failed = (
        f"with its data again: exit code {ended.code}: {ended.errors} {wrong}" if ended.code or wrong else ""
    )
    return Outcome(trial, stage, True, not failed, failed)


def _brighter(path: Path) -> bytes:
    """A picture that is in no data set."""
    import io

    from PIL import Image

    made = io.BytesIO()
    Image.open(path).point(lambda value: 255 - value).save(made, "PNG")
    return made.getvalue()


def damage(place: Place, trial: Trial, folder: Path, how: str) -> Outcome:
    """A file of a checkpoint that is cut short, has one bit flipped, or is all zeros."""
    stage, stream = _begun(place, trial, folder), trial.stream
    checkpoints = {path.parent for path in (folder / "out").rglob("*-*/state.safetensors")}
    newest = max(checkpoints, key=lambda path: path.stat().st_mtime_ns)
    chosen = newest if stream.random() < 0.7 else stream.choice(sorted(checkpoints))
    path = chosen / stream.choice(("weights.safetensors", "state.safetensors", "checksums.json"))
    path.write_bytes(_damaged(path.read_bytes(), how, stream))
    ended = Started(place.again(trial.task, folder), partial(_at_home, folder)).wait()
    if ended.one_line:
        return Outcome(trial, stage, said=True)
    wrong = differences(fingerprint(folder / "out"), place.wholes[trial.task].files)
    if ended.code or wrong:
        why = f"{path.relative_to(folder)} {how}: exit code {ended.code}: {ended.errors} {wrong}"
        return Outcome(trial, stage, failed=why)
    return Outcome(trial, stage, same=True)  # the file was not needed any more, and replaced


def _damaged(content: bytes, how: str, stream: random.Random) -> bytes:
    if how == "cut":
        return content[: stream.randrange(len(content))]
    if how == "zeroed":
        return bytes(len(content))
    place = stream.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << stream.randrange(8)]) + content[place + 1 :]


def _start_group(words: list[str], folder: Path, timeout: int = 1800) -> list[Started]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])

    def join(rank: int) -> None:
        import torch.distributed as dist

        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
        dist.init_process_group = partial(dist.init_process_group, timeout=timedelta(seconds=timeout))

    return [Started(words, partial(_at_home, folder, partial(join, rank))) for rank in (0, 1)]


def set_up_group(place: Place) -> None:
    """The undisturbed run of two processes."""
    print(f"undisturbed: {GROUP}", flush=True)
    folder = place.base / "group"
    ended = [one.wait() for one in _start_group(place.first("classifier", folder), folder)]
    for one in ended:
        _in_order(one)
    place.wholes[GROUP] = Whole(fingerprint(folder / "out"), min(one.cpu for one in ended), 0, 0)


def lose_process(place: Place, trial: Trial, folder: Path, number: int) -> Outcome:
    """One of two processes is killed, or stopped so that it answers no more."""
    whole, lost = place.wholes[GROUP], trial.stream.randrange(2)
    started = _start_group(place.first("classifier", folder), folder, TIMEOUT)
    started[lost].kill_after(trial.share * whole.cpu, number)
    ended = started[1 - lost].wait()
    if started[lost].alive():
        os.kill(started[lost].pid, signal.SIGKILL)
    started[lost].wait()
    stage = stage_of(folder / "out", whole)
    if ended.code and not ended.one_line:
        return Outcome(trial, stage, failed=f"rank {1 - lost}: exit code {ended.code}: {ended.errors}")
    begun = (folder / "out" / "config.yaml").exists()
    words = (place.again if begun else place.first)("classifier", folder)
    again = [one.wait() for one in _start_group(words, folder)]
    if failed := " / ".join(one.errors for one in again if one.code):
        return Outcome(trial, stage, failed=f"resumed: {failed}")
    wrong = differences(fingerprint(folder / "out"), whole.files)
    failed = f"differs from an undisturbed run: {', '.join(wrong)}" if wrong else ""
    return Outcome(trial, stage, ended.one_line, not wrong, failed)


# Of each fault: what is done, the tasks, and how often over all of them; then in the quick part.
Fault = tuple[Callable[[Place, Trial, Path], Outcome], tuple[str, ...], int, int]
ALL, OWN = tuple(TASKS), tuple(task for task in TASKS if task != "reproduce")
PICTURES = tuple(task for task in OWN if task not in ("distill", "grow"))  # those take their data from FIRST
FAULTS: dict[str, Fault] = {
    "killed at a random moment": (kill_at_moment, ALL, 200, 2),
    "killed at a file operation": (kill_at_operation, ALL, 200, 3),
    "disk full": (fill_disk, ALL, 28, 0),
    "file size limited": (limit_file_size, ALL, 28, 1),
    "folder read-only": (read_only, ALL, 21, 1),
    "a picture gone": (partial(change_data, gone=True), PICTURES, 12, 1),
    "another picture in its place": (partial(change_data, gone=False), PICTURES, 12, 0),
    "checkpoint cut short": (partial(damage, how="cut"), OWN, 18, 1),
    "checkpoint with a bit flipped": (partial(damage, how="flipped"), OWN, 30, 1),
    "checkpoint zeroed": (partial(damage, how="zeroed"), OWN, 18, 0),
    "one of two processes killed": (partial(lose_process, number=signal.SIGKILL), (GROUP,), 12, 0),
    "one of two processes stopped": (partial(lose_process, number=signal.SIGSTOP), (GROUP,), 4, 0),
}


def make_trials(faults: Sequence[str], seed: int, quick: bool, tasks: Sequence[str]) -> Iterator[Trial]:
    """Trials that are spread over the tasks, by the time these take, and over the length of each run."""
    for fault in faults:
        _, known, count, few = FAULTS[fault]
        own = [task for task in known if task in tasks]
        weights = [3 if task == "classifier" else 1 for task in own]  # it has three stages
        total = few if quick else count
        for number, task in enumerate(own):
            upto = [round(total * sum(weights[:end]) / sum(weights)) for end in (number, number + 1)]
            stream, times = random.Random(f"{seed} {fault} {task}"), upto[1] - upto[0]
            for part in range(times):
                yield Trial(fault, task, str(seed), (part + stream.random()) / times)


def run_trial(place: Place, trial: Trial) -> Outcome:
    """In a folder of its own, which goes if nothing failed."""
    folder = Path(tempfile.mkdtemp(prefix="trial-", dir=place.base)) / "run"
    found = FAULTS[trial.fault][0](place, trial, folder)
    if not found.failed:
        shutil.rmtree(folder.parent)
    return found


def run_trials(place: Place, trials: Sequence[Trial], jobs: int) -> list[Outcome]:
    """All of them, several at a time; failures are printed as they come."""
    found: list[Outcome] = []
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for one in pool.imap_unordered(partial(run_trial, place), trials):
            found.append(one)
            if one.failed:
                print(f"FAILED {one.trial} at {one.stage}: {one.failed}", flush=True)
            if not len(found) % 20:
                print(f"{len(found)} of {len(trials)}", flush=True)
    return found


def summarise(outcomes: Sequence[Outcome], seed: int, commit: str | None) -> list[dict[str, object]]:
    """A row for each fault, task and stage."""
    counts: dict[tuple[str, str, str], Counter[str]] = {}
    for one in outcomes:
        own = counts.setdefault((one.trial.fault, one.trial.task, one.stage), Counter())
        own.update(tried=1, bit_for_bit=int(one.same), one_line=int(one.said), failed=int(bool(one.failed)))
    faults = list(FAULTS)
    order = sorted(counts, key=lambda key: (faults.index(key[0]), key[1:]))
    columns = TABLE.columns[:3]
    return [
        {**dict(zip(columns, key, strict=True)), **{name: counts[key][name] for name in COUNTS}}
        | {"seed": seed, "commit": commit}
        for key in order
    ]


def render(rows: list[dict[str, str]]) -> str:
    """The counts by fault and task, with the stages that were hit."""
    lines = ["| fault | run | tried | went on bit for bit | said in one line | failed | hit in |"]
    lines.append("|---|---|--:|--:|--:|--:|---|")
    for fault, task in dict.fromkeys((row["fault"], row["task"]) for row in rows):
        own = [row for row in rows if (row["fault"], row["task"]) == (fault, task)]
        sums = [str(sum(int(row[name]) for row in own)) for name in COUNTS]
        stages = ", ".join(f"{row['stage']} {row['tried']}" for row in own)
        lines.append(f"| {fault} | {task} | {' | '.join(sums)} | {stages} |")
    sums = [str(sum(int(row[name]) for row in rows)) for name in COUNTS]
    return "\n".join([*lines, f"| all | | {' | '.join(sums)} | |"])


def main(words: Sequence[str] | None = None) -> int:
    """The exit code: 1 if a trial failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--quick", action="store_true", help="a few trials, nothing is written")
    parser.add_argument("--only", choices=FAULTS, help="this fault alone, nothing is written")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="a fast disk with 1 GB")
    given = parser.parse_args(words)
    os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"  # torch logs lost connections too, in many lines
    import torch

    from sla.runs.result import find_commit

    torch.set_num_threads(1)
    os.environ["SLA_ALLOCATOR"] = "default"  # forked processes share the memory of this one
    commit = find_commit()
    base = Path(tempfile.mkdtemp(prefix="sla-faults-", dir=given.folder))
    base.chmod(0o755)
    faults = [given.only] if given.only else list(FAULTS)
    if "disk full" in faults and not given.quick and not can_mount(base / "disk"):
        print("disk full: left out, it needs the right to mount a disk", flush=True)
        faults.remove("disk full")
    used = {task for fault in faults for task in FAULTS[fault][1]} & set(
        QUICK if given.quick else (*TASKS, GROUP)
    )
    place = set_up(base, [task for task in TASKS if task in used or (task == "classifier" and GROUP in used)])
    if GROUP in used:
        set_up_group(place)
    trials = list(make_trials(faults, given.seed, given.quick, [*place.wholes]))
    outcomes = run_trials(place, trials, given.jobs)
    failed = sum(bool(one.failed) for one in outcomes)
    print(f"{len(outcomes)} trials, {failed} failed")
    if not (given.quick or given.only):
        TABLE.write(summarise(outcomes, given.seed, commit))
        TABLE.show(render)
    if failed:
        print(f"kept: {base}")
    else:
        shutil.rmtree(base)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
