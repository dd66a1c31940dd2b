"""From joint logits to classes: what is selected and refused. Values: tests/test_losses.py."""

import math

import pytest
import torch

import sla
from refusals import refused
from sla.inference import check_inference, marginal_over_classes

JOINT = torch.arange(24.0).view(2, 12)  # two images, three classes, four views: y*4 + j


def test_a_view_is_selected_in_any_number_of_leading_dimensions():
    assert sla.select_view(JOINT, 3, 4).tolist() == [[3, 7, 11], [15, 19, 23]]
    assert sla.select_view(JOINT[0], 0, 4).tolist() == [0, 4, 8]
    assert sla.select_view(JOINT.view(1, 2, 12), 1, 4).tolist() == [[[1, 5, 9], [13, 17, 21]]]
    for dtype in (torch.uint8, torch.int32, torch.int64):
        found = sla.select_view(JOINT, torch.tensor([2, 0], dtype=dtype), 4)
        assert found.tolist() == [[2, 6, 10], [12, 16, 20]]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sla.select_view(JOINT, -1, 4), "view -1 is out of range: 4 views are 0..3"),
        (lambda: sla.select_view(JOINT, torch.tensor([1]), 4), "not (2, 12) and (1,)"),
        (lambda: sla.select_view(JOINT[None], torch.tensor([1]), 4), "not (1, 2, 12) and (1,)"),
        (lambda: sla.select_view(JOINT, torch.tensor([[1], [2]]), 4), "not (2, 12) and (2, 1)"),
        (lambda: sla.average_views(torch.zeros(1, 4, 2), "max"), "unknown average 'max'"),
        (lambda: check_inference("anytime", ("single", "aggregated")), "no anytime rule: one is calibrated"),
        (lambda: check_inference("anytime", ("single",)), "no anytime inference: its method gives single"),
        (lambda: check_inference("distilled", ("single",)), "no distilled inference: its method gives"),
        (lambda: check_inference("singel", ("single",)), "unknown inference 'singel', did you mean 'single'"),
    ],
)
def test_what_cannot_be_is_refused(call, words):
    refused(words, call)


def test_inference_that_is_there_is_not_refused():
    for name in ("single", "aggregated", "anytime", "own"):
        check_inference(name, ("single", "aggregated", "anytime", "own"))


def test_probabilities_of_views_sum_to_one_and_follow_the_logits():
    """Each class adds e^0 to view 0 and e^1 to view 1: shares 1/(1+e) and e/(1+e), whatever the classes."""
    joint = torch.tensor([[0.0, 1.0, 5.0, 6.0, -2.0, -1.0]])
    found = marginal_over_classes(joint, 2)
    expected = [-math.log(1 + math.e), 1 - math.log(1 + math.e)]
    assert found[0].tolist() == pytest.approx(expected, rel=1e-5)


def test_the_average_is_of_logits_unless_said():
    views = torch.tensor([[[0.0, 4.0], [2.0, 0.0]]])
    assert sla.average_views(views).tolist() == [[1.0, 2.0]]
    joint = torch.tensor([[0.0, 9.0, 4.0, 9.0], [9.0, 2.0, 9.0, 0.0]])
    assert sla.aggregate_views(joint, 2).tolist() == [[1.0, 2.0]]
