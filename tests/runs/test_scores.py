"""Scores kept beside a checkpoint: the same logits back, for the same pictures only."""

import numpy as np
import pytest
import torch

from sla.images.content import content_keys
from sla.runs import scores as module
from sla.runs.scores import Scores, read_scores, write_scores


@pytest.fixture
def images():
    return torch.randint(0, 256, (20, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_keys_follow_from_the_pixels_alone(images):
    keys = content_keys(images)
    assert len(set(keys.tolist())) == 20
    assert np.array_equal(content_keys(images.flip(0)), keys[::-1])
    changed = images.clone()
    changed[3, 0, 0, 0] ^= 1
    assert (content_keys(changed) != keys).nonzero()[0].tolist() == [3]


def test_logits_come_back_by_picture_in_any_order(images, tmp_path):
    logits = {"single": torch.randn(20, 7), "aggregated": torch.randn(20, 7)}
    write_scores(tmp_path / "s.safetensors", Scores(logits, content_keys(images)))
    found = read_scores(tmp_path / "s.safetensors")
    order = torch.tensor([4, 4, 19, 0])
    again = found.of(content_keys(images[order]))
    for inference, values in logits.items():
        assert torch.equal(again[inference], values[order])
    other = images[:2].clone()
    other[0] += 1
    assert found.of(content_keys(other)) is None
    assert read_scores(tmp_path / "absent.safetensors") is None


def test_what_is_too_large_keeps_the_top_scores_and_their_probabilities(images, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
    logits = torch.randn(20, 200)
    write_scores(tmp_path / "s.safetensors", Scores({"single": logits}, content_keys(images)))
    found = read_scores(tmp_path / "s.safetensors").logits["single"]
    best = logits.topk(module.TOP, 1)
    assert torch.equal(found.gather(1, best.indices), best.values)
    exact = logits.softmax(1).gather(1, best.indices)
    torch.testing.assert_close(found.softmax(1).gather(1, best.indices), exact)
    assert torch.equal(found.topk(5, 1).indices, logits.topk(5, 1).indices)
    assert (tmp_path / "s.safetensors").stat().st_size < 4 * logits.numel() / 2


@pytest.mark.parametrize("damage", [lambda data: data[:50], lambda data: b"", lambda data: b"\0" * len(data)])
def test_a_damaged_file_is_as_good_as_none(images, tmp_path, damage):
    path = tmp_path / "s.safetensors"
    write_scores(path, Scores({"single": torch.randn(20, 3)}, content_keys(images)))
    path.write_bytes(damage(path.read_bytes()))
    assert read_scores(path) is None


def test_scores_of_another_model_are_not_taken(images, tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights.safetensors").write_bytes(name.encode())
    write_scores(
        tmp_path / "one" / "s.safetensors", Scores({"single": torch.randn(20, 3)}, content_keys(images))
    )
    assert read_scores(tmp_path / "one" / "s.safetensors") is not None
    moved = tmp_path / "other" / "s.safetensors"
    moved.write_bytes((tmp_path / "one" / "s.safetensors").read_bytes())
    assert read_scores(moved) is None
