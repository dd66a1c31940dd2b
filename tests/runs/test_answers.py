"""What a prediction says."""

import pytest

from sla.runs.answers import UNSURE, answer_of


@pytest.mark.parametrize(
    ("probability", "least", "unlike", "expected"),
    [
        (0.3, 0.0, False, "cat"),
        (0.3, 0.0, True, "cat"),  # without a threshold the mark alone says it
        (0.9, 0.9, False, "cat"),
        (0.89, 0.9, False, UNSURE),
        (0.99, 0.9, True, UNSURE),
    ],
)
def test_below_the_threshold_or_unlike_the_training_pictures_it_is_unsure(
    probability, least, unlike, expected
):
    assert answer_of("cat", probability, least, unlike) == expected
