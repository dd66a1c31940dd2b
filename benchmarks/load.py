"""Memory of an hour of training, predicting and serving, and folders of a million files or 20,000 classes.

    python benchmarks/load.py hour [train predict serve] [--minutes 60]
    python benchmarks/load.py folder --files 1000000 --classes 1000

`hour`: each in one process, whose resident memory is read from the system every few seconds (Linux). The
first share is warm-up; a line through the means of equal blocks of the rest gives the slope: neighbouring
samples are alike, means of long blocks much less, so the error is that of the blocks. `folder`: makes
such a folder of small PNG files (a million needs about 4 GB and as many inodes), times `sla data check` and a
run of 100 steps on it, and removes it. Writes results/load.csv, where a row replaces that of the same work,
and the tables in docs/trust.md.
"""

import argparse
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from speed import PLACE, place
from tables import Table

from sla.stats import t_quantile

WARM_UP, BLOCKS = 0.25, 12  # share of the time that is left out; means that the line is fitted to
ENOUGH = 30  # minutes: before that a slope may be the end of the warm-up
STEPS, BATCH = 100, 32  # of the run on a folder
EDGE = 8  # pixels of a picture in such a folder
WORK = {
    "train": "training steps",
    "predict": "pictures",
    "serve": "requests",
    "check": "`sla data check`",
    "steps": f"`sla train`, {STEPS} steps",
}
HOURS = ("train", "predict", "serve")
COLUMNS = (
    *("what", "files", "classes", "minutes", "cpu_minutes", "samples", "work"),
    *("slope_mb_per_hour", "error", "start_mb", "peak_mb", "seed", *PLACE),
)
TABLE = Table("load", "docs/trust.md", COLUMNS)
SETTINGS = {
    "model.backbone": "convnet4",
    "model.options": "{width: 16}",
    "run.compile": "false",
    "data.workers": "0",
}
ENVIRONMENT = {"ORT_DISABLE_TELEMETRY": "1"}


class Slope(NamedTuple):
    """Of a line through memory over time: MB per hour, and its standard error."""

    value: float
    error: float

    @property
    def flat(self) -> bool:
        """Whether the 95% interval contains zero."""
        return abs(self.value) <= t_quantile(BLOCKS - 2) * self.error


class Sample(NamedTuple):
    """Resident memory of a process, in MB, some hours after its start."""

    hours: float
    megabytes: float


def fit_slope(samples: Sequence[Sample]) -> Slope:
    """The least-squares line through the means of equal blocks, without the warm-up."""
    end = samples[-1].hours
    rest = [one for one in samples if one.hours >= WARM_UP * end]
    if len(rest) < BLOCKS:
        raise SystemExit(f"{len(rest)} samples after warm-up, but a slope needs {BLOCKS}: take more minutes")
    edges = [round(number * len(rest) / BLOCKS) for number in range(BLOCKS + 1)]
    blocks = [rest[start:stop] for start, stop in pairwise(edges)]
    x = [sum(one.hours for one in block) / len(block) for block in blocks]
    y = [sum(one.megabytes for one in block) / len(block) for block in blocks]
    mean_x, mean_y = sum(x) / BLOCKS, sum(y) / BLOCKS
    spread = sum((value - mean_x) ** 2 for value in x)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    squares = sum((b - mean_y - slope * (a - mean_x)) ** 2 for a, b in zip(x, y, strict=True))
    return Slope(slope, math.sqrt(squares / (BLOCKS - 2) / spread))


def resident(pid: int, name: str = "VmRSS:") -> float:
    """MB of memory that a process has, or had at its highest (`VmHWM:`)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(name))


def watch(process: subprocess.Popen, minutes: float, work: Callable[[], None]) -> tuple[list[Sample], float]:
    """Samples of its memory for so long, or until it ends, and its highest; `work` is called in between."""
    start, every, samples, peak = time.monotonic(), min(60 * minutes / 720, 5), [], 0.0
    while (passed := time.monotonic() - start) < 60 * minutes and process.poll() is None:
        if passed >= len(samples) * every:
            try:
                samples.append(Sample(passed / 3600, resident(process.pid)))
                peak = resident(process.pid, "VmHWM:")
            except (OSError, StopIteration):  # it has just ended
                break
        work()
    return samples, peak


def pause() -> None:
    """Nothing to do between two samples."""
    time.sleep(0.05)


def words(*given: object) -> list[str]:
    """A command of this package, as a process of its own."""
    return [sys.executable, "-m", "sla", *map(str, given)]


def settings(**more: object) -> list[str]:
    """Those of all runs here, as options."""
    chosen = SETTINGS | {name.replace("__", "."): str(value) for name, value in more.items()}
    return [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]


def measure_hour(what: str, minutes: float, folder: Path, seed: int) -> dict[str, object]:
    """A row: one process does this for so many minutes."""
    run, done = folder / "run", 0
    if what == "train":
        command = words("train", "digits", "--out", run, "--minutes", minutes, "--seed", seed, "--no-report")
        command += settings(run__evaluations=60)
    else:
        small = settings(run__evaluations=1)
        command = words("train", "digits", "--out", run, "--iterations", 50, "--seed", seed, *small)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        pictures = make_pictures(folder / "pictures", 64, seed)
        command = words("serve", run, "--port", 0)
        if what == "predict":
            command = [sys.executable, __file__, "rounds", str(run), str(minutes), *map(str, pictures)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | ENVIRONMENT)
    assert process.stdout
    try:
        act = pause
        if what == "train":
            wait_for_row(run / "metrics.csv", process)
        else:
            first = process.stdout.readline()  # the server's address, or that one round is over
        if what == "serve":
            requests = post_in_turn(f"{first.split(': ')[1].split()[0]}/api/predict", pictures)
            act = lambda: next(requests)  # noqa: E731
            for _ in pictures:
                act()
        samples, peak = watch(process, minutes, act)
        if what == "serve":
            done = requests.send(True)
            process.terminate()
        said = process.communicate()[0]
    finally:
        process.kill()
        process.wait()
    if what == "train":
        done = json.loads((run / "result.json").read_text())["cost"]["iterations"]
    elif what == "predict":
        done = int(said.split()[-1])
    slope, used = fit_slope(samples), 60 * samples[-1].hours
    return {
        **{"what": what, "minutes": f"{used:.1f}", "samples": len(samples), "work": done, "seed": seed},
        **{"slope_mb_per_hour": f"{slope.value:.2f}", "error": f"{slope.error:.2f}"},
        **{"start_mb": f"{_after_warm_up(samples):.0f}", "peak_mb": f"{peak:.0f}"},
    }


def _after_warm_up(samples: Sequence[Sample]) -> float:
    return next(one.megabytes for one in samples if one.hours >= WARM_UP * samples[-1].hours)


def wait_for_row(path: Path, process: subprocess.Popen) -> None:
    """Until a run has written its first row of metrics: everything is loaded then."""
    while process.poll() is None and not (path.exists() and path.read_text().count("\n") > 1):
        time.sleep(0.2)


def post_in_turn(address: str, pictures: Sequence[Path]) -> Iterator[int]:
    """Posts one picture after the other; each must be answered. Gives how many were."""
    done = 0
    while True:
        request = urllib.request.Request(address, pictures[done % len(pictures)].read_bytes())
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert "class" in json.load(answer)
        done += 1
        if (yield done):
            yield done


def predict_rounds(run: Path, minutes: float, pictures: Sequence[Path]) -> None:
    """In a process of its own: open the run and predict, again and again; prints the number of pictures."""
    import sla

    sla.keep_memory()  # as the command line does
    start, done = None, 0
    while start is None or time.monotonic() - start < 60 * minutes:
        opened = sla.Run(run)
        for _ in range(4):
            done += len(opened.predict(list(pictures)).probabilities)
        if start is None:
            start = time.monotonic()
            print("ready", flush=True)
    print(done, flush=True)


def make_pictures(folder: Path, count: int, seed: int) -> list[Path]:
    """So many files of random pixels in one folder."""
    stream = random.Random(seed)
    folder.mkdir(parents=True)
    paths = [folder / f"{number:07d}.png" for number in range(count)]
    for path in paths:
        path.write_bytes(make_png(stream.randbytes(3 * EDGE * EDGE)))
    return paths


def make_png(pixels: bytes) -> bytes:
    """A square RGB picture; a tenth of the time that Pillow would take."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = 3 * EDGE
    lines = b"".join(b"\0" + pixels[start : start + row] for start in range(0, len(pixels), row))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", EDGE, EDGE, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(lines, 1)) + chunk(b"IEND", b"")


def make_folder(folder: Path, files: int, classes: int, seed: int) -> None:
    """Class folders with so many different pictures in all, shared out evenly; refused without the space."""
    usage, needed = os.statvfs(folder.parent), files + classes
    if usage.f_favail and usage.f_favail < 2 * needed:
        raise SystemExit(f"{needed:,} inodes are needed and {usage.f_favail:,} are free; half must stay free")
    if usage.f_bavail * usage.f_frsize < 2 * 4096 * needed:
        raise SystemExit(f"{4096 * needed / 1e9:.1f} GB are needed; as much must stay free")
    stream = random.Random(seed)
    for label in range(classes):
        own = folder / f"class{label:05d}"
        own.mkdir(parents=True)
        for number in range(label, files, classes):
            (own / f"{number:07d}.png").write_bytes(make_png(stream.randbytes(3 * EDGE * EDGE)))


def measure_folder(files: int, classes: int, folder: Path, seed: int) -> Iterator[dict[str, object]]:
    """A row for the check and one for the run."""
    data = folder / "data"
    make_folder(data, files, classes, seed)
    print(f"{files:,} files in {classes:,} classes are there", flush=True)
    train = words("train", data, "--out", folder / "run", "--iterations", STEPS, "--seed", seed)
    train += settings(run__batch_size=BATCH)
    for what, command in (("check", words("data", "check", data)), ("steps", train)):
        start = time.monotonic()
        with open(folder / "said.txt", "wb") as said:
            environment = os.environ | ENVIRONMENT | {"SLA_DATA": str(folder / "cache")}
            process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=environment)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{(folder / 'said.txt').read_text()[-2000:]}")
        yield {
            **{"what": what, "files": files, "classes": classes, "seed": seed},
            **{"minutes": f"{(time.monotonic() - start) / 60:.2f}"},
            **{"cpu_minutes": f"{(used.ru_utime + used.ru_stime) / 60:.2f}"},
            **{"work": STEPS if what == "steps" else files, "peak_mb": f"{used.ru_maxrss * 1024 / 1e6:.0f}"},
        }


def keep(row: dict[str, object]) -> None:
    """The row in place of an earlier one of the same work."""
    print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    with TABLE.alone("table"):
        others = [one for one in TABLE.read() if _work_of(one) != _work_of(row)]
        TABLE.write(sorted([*others, row], key=_order))
    TABLE.show(render)


def _work_of(row: dict) -> tuple[str, ...]:
    return tuple(str(row.get(name) or "") for name in ("what", "files", "classes"))


def _order(row: dict) -> tuple[int, ...]:
    return list(WORK).index(row["what"]), int(row.get("classes") or 0), int(row.get("files") or 0)


def render(rows: list[dict[str, str]]) -> str:
    """A table of each kind."""
    lines = [
        "| one process | minutes | work | memory after warm-up, MB | highest, MB | MB per hour | 95% |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        if row["what"] in HOURS:
            slope = Slope(float(row["slope_mb_per_hour"]), float(row["error"]))
            half = t_quantile(BLOCKS - 2) * slope.error
            ends = f"{slope.value - half:+.1f} to {slope.value + half:+.1f}"
            done = f"{int(row['work']):,} {WORK[row['what']]}"
            memory = f"{float(row['start_mb']):,.0f} | {float(row['peak_mb']):,.0f}"
            cells = (row["what"], f"{float(row['minutes']):.0f}", done, memory, f"{slope.value:+.1f}", ends)
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| command | files | classes | minutes | core-minutes | highest memory, MB |"]
    lines += ["|---|--:|--:|--:|--:|--:|"]
    for row in rows:
        if row["what"] not in HOURS:
            sizes = (f"{int(row['files']):,}", f"{int(row['classes']):,}")
            times = (f"{float(row[name]):.1f}" for name in ("minutes", "cpu_minutes"))
            cells = (WORK[row["what"]], *sizes, *times, f"{float(row['peak_mb']):,.0f}")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", _note(rows)])


def _note(rows: list[dict[str, str]]) -> str:
    places = dict.fromkeys(
        f"{row['machine']}, {row['threads']} thread{'s' * (row['threads'] != '1')}, torch {row['torch']}"
        for row in rows
    )
    short = any(row["what"] in HOURS and float(row["minutes"]) < ENOUGH for row in rows)
    text = f"Pictures of {EDGE} x {EDGE} pixels; {'; '.join(places)}."
    return text + (f" Rows of less than {ENOUGH} minutes only show that it runs." if short else "")


def main() -> None:
    if sys.argv[1:2] == ["rounds"]:
        predict_rounds(Path(sys.argv[2]), float(sys.argv[3]), [Path(word) for word in sys.argv[4:]])
        return
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    hour, many = kinds.add_parser("hour"), kinds.add_parser("folder")
    hour.add_argument("what", nargs="*", help=f"of {', '.join(HOURS)}; default: all")
    hour.add_argument("--minutes", type=float, default=60)
    many.add_argument("--files", type=int, default=1_000_000)
    many.add_argument("--classes", type=int, default=1000)
    many.add_argument("--below", type=Path, help="where to make the folder; default: that of temporary files")
    for one in (hour, many):
        one.add_argument("--seed", type=int, default=0)
        one.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args()
    if given.kind == "hour" and not set(given.what) <= set(HOURS):
        parser.error(f"{' '.join(given.what)}: choose of {', '.join(HOURS)}")
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    where = place(given.threads, quick=False)
    if given.kind == "hour":
        for what in given.what or HOURS:
            with tempfile.TemporaryDirectory(prefix="sla-load-") as folder:
                keep(measure_hour(what, given.minutes, Path(folder), given.seed) | where)
        return
    folder = Path(tempfile.mkdtemp(prefix="sla-load-", dir=given.below))
    try:
        for row in measure_folder(given.files, given.classes, folder, given.seed):
            keep(row | where)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
