import io
import zipfile

import numpy as np
import pytest
from PIL import Image

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


@pytest.fixture(scope="session")
def photographs(shared_data):
    """Sixteen real photographs, landscape and portrait."""
    with zipfile.ZipFile(shared_data / "cub200_2011_s96.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".webp"))[::737]
        return [Image.open(io.BytesIO(archive.read(name))).convert("RGB") for name in names]
