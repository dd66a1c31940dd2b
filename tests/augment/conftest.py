import numpy as np
import pytest

from sla.augment.policy_ops import NUMBER, apply_operations


@pytest.fixture
def operate():
    """One operation by its name for a whole batch; magnitude (B,) or one for all."""

    def run(images, name, magnitude=0.0, place=None):
        count = len(images)
        magnitudes = np.broadcast_to(np.asarray(magnitude, np.float64), (count,))
        places = np.full((count, 2), 0.5) if place is None else place
        return apply_operations(images, np.full(count, NUMBER[name]), magnitudes, places)

    return run
