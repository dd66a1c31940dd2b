"""The faults: each breaks a run, resumes it, and says what came of it."""

import io
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

from fault_processes import Ended, Started, die_at_operation, differences, fingerprint
from fault_runs import GROUP, TASKS, Place, Whole, at_home, in_order, stage_of

NOBODY = 65534  # root may write anywhere: what a folder refuses is refused to this user
TIMEOUT = 10  # seconds that a process waits for one that is lost; torch's default is 30 minutes


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


def go_on(place: Place, trial: Trial, folder: Path) -> tuple[str, bool]:
    """Resume, or start again where nothing is to resume; why that failed, and if it was refused first."""
    refused = False
    ended = Started(place.again(trial.task, folder), partial(at_home, folder)).wait()
    if ended.one_line and not (folder / "out" / "config.yaml").exists():
        refused = True
        ended = Started(place.first(trial.task, folder), partial(at_home, folder)).wait()
    if ended.code:
        return f"exit code {ended.code}: {ended.errors}", refused
    wrong = differences(fingerprint(folder / "out"), place.wholes[trial.task].files)
    return f"differs from an undisturbed run: {', '.join(wrong)}" if wrong else "", refused


def _kill_at_operation(place: Place, trial: Trial, folder: Path, share: float) -> None:
    number = int(share * place.wholes[trial.task].operations)
    prepare = partial(at_home, folder, partial(die_at_operation, folder, number))
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
    started = Started(place.first(trial.task, folder), partial(at_home, folder))
    while not started.kill_after(trial.share * whole.cpu):  # it was quicker this time
        started.wait()
        shutil.rmtree(folder)
        trial = replace(trial, share=0.9 * trial.share)
        started = Started(place.first(trial.task, folder), partial(at_home, folder))
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
        ended = Started(place.first(trial.task, folder), partial(at_home, folder)).wait()
        larger = partial(_mount, "-o", "remount,size=100m", str(folder))
        return _refused_then_resumed(place, trial, folder, ended, larger)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def limit_file_size(place: Place, trial: Trial, folder: Path) -> Outcome:
    """Files that may not grow beyond some bytes (EFBIG)."""
    size = int(64 * (place.wholes[trial.task].size / 64) ** trial.share)  # small ones more often
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
    ended = Started(place.first(trial.task, folder), partial(at_home, folder, limit)).wait()
    return _refused_then_resumed(place, trial, folder, ended, lambda: None)


def read_only(place: Place, trial: Trial, folder: Path) -> Outcome:
    """A folder that became read-only before the run is resumed."""
    _kill_at_operation(place, trial, folder, trial.share)
    (folder / "home").mkdir(parents=True, exist_ok=True)
    _change_modes(folder, 0o555, 0o444)
    as_user = partial(os.setuid, NOBODY) if os.getuid() == 0 else lambda: None
    found = (folder / "out" / "config.yaml").exists()
    words = place.again(trial.task, folder) if found else place.first(trial.task, folder)
    ended = Started(words, partial(at_home, folder, as_user)).wait()
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
    used = [path for name in "0123" for path in sorted((own.base / "data" / "train" / name).iterdir())]
    picture, other = trial.stream.sample(used, 2)
    kept = picture.read_bytes()
    picture.unlink()
    if not gone:
        picture.write_bytes(_brighter(other))
    ended = Started(own.again(trial.task, folder / "run"), partial(at_home, folder / "run")).wait()
    if not ended.one_line:
        return Outcome(trial, stage, failed=f"exit code {ended.code} with other data: {ended.errors}")
    picture.unlink(missing_ok=True)
    picture.write_bytes(kept)
    ended = Started(own.again(trial.task, folder / "run"), partial(at_home, folder / "run")).wait()
    found, whole = fingerprint(folder / "run" / "out"), place.wholes[trial.task].files
    wrong = [name for name in differences(found, whole) if name.endswith("weights.safetensors")]
    failed = (
        f"with its data again: exit code {ended.code}: {ended.errors} {wrong}" if ended.code or wrong else ""
    )
    return Outcome(trial, stage, True, not failed, failed)


def _brighter(path: Path) -> bytes:
    """A picture that is in no data set."""
    from PIL import Image

    made = io.BytesIO()
    Image.open(path).point(lambda value: 255 - value).save(made, "PNG")
    return made.getvalue()


def damage(place: Place, trial: Trial, folder: Path, how: str) -> Outcome:
    """A file of a checkpoint that is cut short, has one bit flipped, or is all zeros."""
    stage, stream = _begun(place, trial, folder), trial.stream
    checkpoints = {path.parent for path in (folder / "out").rglob("*-*/state.safetensors")}
    lasts = [path for path in checkpoints if path.name.startswith("last-")]
    newest = max(lasts, key=lambda path: path.stat().st_mtime_ns)
    chosen = newest if stream.random() < 0.7 else stream.choice(sorted(checkpoints))
    names = ("weights.safetensors", "state.safetensors", "checksums.json")
    path = chosen / stream.choice([name for name in names if (chosen / name).exists()])
    path.write_bytes(_damaged(path.read_bytes(), how, stream))
    ended = Started(place.again(trial.task, folder), partial(at_home, folder)).wait()
    if ended.one_line:
        return Outcome(trial, stage, said=True)
    wrong = differences(fingerprint(folder / "out"), place.wholes[trial.task].files)
    if path.exists() and _is_refused(chosen):  # the run did not need it; whoever opens it hears of it
        wrong = [name for name in wrong if name != str(path.relative_to(folder / "out"))]
    if ended.code or wrong:
        why = f"{path.relative_to(folder)} {how}: exit code {ended.code}: {ended.errors} {wrong}"
        return Outcome(trial, stage, failed=why)
    return Outcome(trial, stage, same=True)


def _is_refused(checkpoint: Path) -> bool:
    """Whether a checkpoint is known to be damaged."""
    from sla.errors import InputError
    from sla.runs.checkpoint import STATE, WEIGHTS, check_file

    try:
        for name in (WEIGHTS, STATE):
            check_file(checkpoint / name)
    except InputError:
        return True
    return False


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

    return [Started(words, partial(at_home, folder, partial(join, rank))) for rank in (0, 1)]


def set_up_group(place: Place) -> None:
    """The undisturbed run of two processes."""
    print(f"undisturbed: {GROUP}", flush=True)
    folder = place.base / "group"
    ended = [one.wait() for one in _start_group(place.first("classifier", folder), folder)]
    for one in ended:
        in_order(one)
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
    "killed at a file operation": (kill_at_operation, ALL, 200, 2),
    "disk full": (fill_disk, ALL, 28, 0),
    "file size limited": (limit_file_size, ALL, 28, 1),
    "folder read-only": (read_only, ALL, 21, 0),
    "a picture gone": (partial(change_data, gone=True), PICTURES, 12, 0),
    "another picture in its place": (partial(change_data, gone=False), PICTURES, 12, 0),
    "checkpoint cut short": (partial(damage, how="cut"), OWN, 18, 0),
    "checkpoint with a bit flipped": (partial(damage, how="flipped"), OWN, 30, 1),
    "checkpoint zeroed": (partial(damage, how="zeroed"), OWN, 18, 0),
    "one of two processes killed": (partial(lose_process, number=signal.SIGKILL), (GROUP,), 12, 0),
    "one of two processes stopped": (partial(lose_process, number=signal.SIGSTOP), (GROUP,), 4, 0),
}
