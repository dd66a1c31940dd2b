"""Durations in words."""

import pytest

from sla.progress import duration


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.04 seconds"),
        (1, "1 second"),
        (45, "45 seconds"),
        (720, "12 minutes"),
        (3.4 * 3600, "3.4 hours"),
        (12 * 86400, "12 days"),
        (1200 * 365 * 86400, "1,200 years"),
    ],
)
def test_a_duration_in_words(seconds, words):
    assert duration(seconds) == words
