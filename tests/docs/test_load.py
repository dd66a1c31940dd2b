"""What benchmarks/load.py measures with: slopes of made-up memory and of a real process, folders, rows."""

import random
import subprocess
import sys

import load
import pytest
from load import Sample, fit_slope, make_folder, watch
from PIL import Image

SIZES = {"start_mb": 5, "peak_mb": 6}
LEAKING = """
import sys, time
kept = [bytearray(60_000_000)]
while True:
    time.sleep(0.02)
    if sys.argv[1] == "leak":
        kept.append(bytearray(b"x" * 100_000))
"""


def noisy(slope, hours=1.0, count=720, seed=0):
    """Memory with a warm-up of 300 MB, this slope, and noise that is much like the sample before."""
    stream, drift, found = random.Random(seed), 0.0, []
    for number in range(count):
        time = hours * number / (count - 1)
        drift = 0.9 * drift + stream.gauss(0, 2)
        found.append(Sample(time, 500 - 300 * (number < count / 8) + slope * time + drift))
    return found


@pytest.mark.parametrize("slope", [0.0, 5.0, 40.0, -40.0])
def test_the_interval_has_the_slope_about_as_often_as_it_says(slope):
    """Samples are autocorrelated: an interval from single ones would miss it in most of the series."""
    quantile = load.t_quantile(load.BLOCKS - 2)
    found = [fit_slope(noisy(slope, seed=seed)) for seed in range(100)]
    inside = sum(abs(one.value - slope) <= quantile * one.error for one in found)
    assert inside >= 88
    assert abs(sum(one.value for one in found) / 100 - slope) < 1


def test_noise_is_flat_and_a_leak_is_not():
    assert sum(fit_slope(noisy(0.0, seed=seed)).flat for seed in range(100)) >= 88
    assert not any(fit_slope(noisy(60.0, seed=seed)).flat for seed in range(100))


def test_too_few_samples_give_no_slope():
    with pytest.raises(SystemExit, match="take more minutes"):
        fit_slope(noisy(0.0, count=12))


@pytest.mark.parametrize("kind", ["leak", "none"])
def test_a_process_that_leaks_is_found(kind):
    """At most 100 kB every 20 ms, 18 GB per hour: the bound is what such a process leaked in that time."""
    process = subprocess.Popen([sys.executable, "-c", LEAKING, kind])
    try:
        samples, peak = watch(process, 0.05, load.pause)
    finally:
        process.kill()
        process.wait()
    slope = fit_slope(samples)
    first, last = samples[len(samples) // 4], samples[-1]
    grown = (last.megabytes - first.megabytes) / (last.hours - first.hours)
    assert peak >= samples[-1].megabytes > 60
    if kind == "leak":
        assert not slope.flat
        assert 500 < slope.value < 18_500
        assert slope.value == pytest.approx(grown, rel=0.5)
    else:
        assert abs(slope.value) < 500


def test_the_folder_has_so_many_different_pictures(tmp_path):
    make_folder(tmp_path / "data", 11, 3, seed=0)
    files = sorted((tmp_path / "data").rglob("*.png"))
    assert [len(list(own.iterdir())) for own in sorted((tmp_path / "data").iterdir())] == [4, 4, 3]
    assert len({file.read_bytes() for file in files}) == 11
    with Image.open(files[0]) as picture:
        picture.load()
        assert (picture.size, picture.mode) == ((8, 8), "RGB")
    with pytest.raises(SystemExit, match=r"inodes are needed|GB are needed"):
        make_folder(tmp_path / "more", 10**12, 3, seed=0)


def test_a_row_replaces_that_of_the_same_work(tmp_path, monkeypatch):
    import tables

    monkeypatch.setattr(tables, "REPOSITORY", tmp_path)
    page = tmp_path / "docs" / "trust.md"
    page.parent.mkdir()
    page.write_text("<!-- made by benchmarks/load.py -->\n\n<!-- end -->\n")
    where = dict.fromkeys(load.PLACE, "x")
    row = {"what": "check", "files": 10, "classes": 2, "minutes": 1, "cpu_minutes": 1, "peak_mb": 100}
    for change in ({}, {"files": 20}, {"files": 20, "peak_mb": 300}, {"what": "steps"}):
        load.keep(row | change | where)
    assert [(one["what"], one["files"], one["peak_mb"]) for one in load.TABLE.read()] == [
        ("check", "10", "100"),
        ("check", "20", "300"),
        ("steps", "10", "100"),
    ]
    load.keep({**where, "what": "serve", "minutes": 2, "work": 9, "slope_mb_per_hour": 3, "error": 1} | SIZES)
    assert "| `sla data check` | 20 | 2 | 1.0 | 1.0 | 300 |" in page.read_text()
    assert "| serve | 2 | 9 requests | 5 | 6 | +3.0 | +0.8 to +5.2 |" in page.read_text()
    assert "less than 30 minutes only show" in page.read_text()
