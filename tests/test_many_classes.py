"""With many images and classes nothing makes a second table of all scores, nor one of all training images."""

import time

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import sla
from sla.anytime import AnytimeRule
from sla.errors import SLAError
from sla.images.content import dataset_keys
from sla.images.store import ArrayImages, Dataset
from sla.report.calibration import most_confident_mistakes, reliability
from sla.report.ending import by_confidence
from sla.runs import metrics
from sla.runs.metrics import calibration_error, confidences
from sla.runs.scores import Scores, read_scores, write_scores
from sla.tasks.classifier.evaluation import check_finite
from sla.tasks.classifier.label_check import check_by_run
from sla.tasks.classifier.split import same_classes
from sla.tasks.classifier.unlike import REFERENCE, reference_images

IMAGES, CLASSES = 300, 2000


class Largest(TorchDispatchMode):
    """The bytes of the largest tensor that was computed inside; views of others are not computed."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        before = {one.untyped_storage().data_ptr() for one in args if isinstance(one, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else (result,):
            if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() not in before:
                self.bytes = max(self.bytes, one.nbytes)
        return result


@pytest.fixture
def outputs():
    torch.manual_seed(0)
    return torch.randn(IMAGES, CLASSES), torch.randint(CLASSES, (IMAGES,))


@pytest.mark.parametrize(
    "use",
    [
        lambda logits, targets: calibration_error(logits, targets, 2.0),
        lambda logits, targets: reliability(logits, targets, 2.0),
        lambda logits, targets: by_confidence(logits, targets, 2.0),
        lambda logits, targets: most_confident_mistakes(logits, targets, 2.0, 5),
        lambda logits, targets: check_finite(logits, "single"),
    ],
)
def test_scores_are_measured_a_part_at_a_time(use, outputs):
    with Largest() as largest:
        use(*outputs)
    assert 0 < largest.bytes <= 8 * metrics.PART


def test_confidences_are_those_of_all_at_once(outputs):
    logits, _ = outputs
    confidence, predicted = confidences(logits, 2.0)
    expected = (logits.double() / 2.0).softmax(1).max(1)
    assert torch.equal(confidence, expected.values)
    assert torch.equal(predicted, expected.indices)


def test_a_score_that_is_no_number_is_found(outputs):
    for place, value in ((3, torch.nan), (7, torch.inf), (7, -torch.inf)):
        logits = outputs[0].clone()
        logits[place, 5] = value
        with pytest.raises(SLAError, match="of 1 of 300 images are NaN or infinite"):
            check_finite(logits, "single")


def test_scores_are_written_without_a_copy_and_read_as_far_as_asked(outputs, tmp_path, monkeypatch):
    monkeypatch.setattr("sla.runs.scores.MAX_BYTES", 1000)
    logits, keys = outputs[0], np.arange(IMAGES, dtype=np.uint64)
    with Largest() as largest:
        write_scores(tmp_path / "scores.safetensors", Scores({"single": logits, "aggregated": logits}, keys))
    assert largest.bytes <= 8 * 64 * CLASSES
    read = read_scores(tmp_path / "scores.safetensors", ("single", "distilled"))
    assert list(read.logits) == ["single"]
    assert torch.allclose(read.logits["single"].logsumexp(1), logits.logsumexp(1), atol=1e-4)
    with Largest() as largest:
        assert torch.equal(read.of(keys)["single"], read.logits["single"])
    assert largest.bytes <= 8 * IMAGES  # in the same order: as they are
    assert torch.equal(read.of(keys[::-1].copy())["single"], read.logits["single"].flip(0))


def test_a_run_judges_its_held_out_pictures_without_a_table_of_all_it_trained_on(finished_run):
    splits = finished_run.load_splits("digits")
    with Largest() as largest:
        found = check_by_run(finished_run, splits, evaluate=False)
    judged = max(len(part.dataset) for part in found.judged)
    assert 0 < judged < len(splits.train) / 2
    assert largest.bytes <= 4 * judged * len(finished_run.classes)


def test_other_numbers_of_20000_classes_take_no_time():
    """Each name was once looked for in the list of all of them."""
    names = tuple(f"class {number}" for number in range(20_000))
    images = ArrayImages(torch.zeros(20_000, 1, 1, 1, dtype=torch.uint8))
    dataset = Dataset(images, np.arange(20_000), names)
    start = time.process_time()
    found = same_classes(dataset, names[::-1])
    assert found.targets.tolist() == list(range(20_000))[::-1]
    assert len(reference_images(dataset)) == max(20_000, REFERENCE)
    assert time.process_time() - start < 1


def test_anytime_answers_of_many_images_are_kept_too(tmp_path, tiny_settings, monkeypatch):
    """Where not all images keep the logits of each view; without them a report evaluates everything again."""
    rule = AnytimeRule((0, 1, 2, 3), 0.5, 0.99, 72)
    monkeypatch.setattr("sla.tasks.classifier.evaluation.MOST_BYTES", 144 * 4 * 10 * 4 // 2)
    monkeypatch.setattr("sla.tasks.classifier.anytime.calibrate", lambda by_view: [rule])
    run = sla.fit("digits", tmp_path / "run", **tiny_settings)
    dataset = run.load_splits("digits").train
    kept = run.kept_scores("val")
    places, found = kept.find(dataset_keys(dataset))
    assert len(places) == len(kept.keys) == run.result["images"]["val"]
    run.model.anytime_rule = rule
    expected = run.evaluate(dataset.subset(places), inferences=("anytime",))
    assert torch.allclose(found["anytime"], expected.logits["anytime"], atol=1e-5)
    views = run.result["accuracies"]["last"]["val"]["anytime"]["views"]
    assert views == pytest.approx(expected.views.double().mean().item())
