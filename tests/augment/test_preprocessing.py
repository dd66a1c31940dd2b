"""What a model's file says of its images, read back, and what is refused."""

import json

import pytest
import torch

from refusals import refused
from sla.augment.pipelines import eval_pipeline
from sla.augment.preprocessing import Preprocessing
from sla.errors import InputError
from sla.sampling.draws import Draws

GOOD = {
    "augment": "resized, flip",
    "resolution": 12,
    "stored_size": 16,
    "mean": [0.5, 0.4, 0.3],
    "std": [0.2, 0.2, 0.1],
}


def test_it_survives_json_and_gives_the_pipeline_of_evaluation():
    found = Preprocessing.from_dict(json.loads(json.dumps(GOOD)))
    assert (found.mean, found.stored_size, found.channels) == ((0.5, 0.4, 0.3), 16, 3)
    assert found.to_dict() == GOOD
    assert Preprocessing.from_dict(found.to_dict()) == found
    expected = eval_pipeline("resized, flip", 12, (0.5, 0.4, 0.3), (0.2, 0.2, 0.1))
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    arguments = images, Draws(0, 0, 2), torch.tensor([1.0, 1.5])
    assert torch.equal(found.eval_pipeline()(*arguments), expected(*arguments))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mean": None}, "mean must be numbers, one per channel"),
        ({"mean": []}, "mean must be numbers, one per channel"),
        ({"mean": "abc"}, "mean must be numbers"),
        ({"mean": [0.5, 0.5]}, "2 means but 3 stds"),
        ({"std": [0.2, 0.2, 0.0]}, "std must be numbers above 0"),
        ({"std": [0.2, 0.2, float("nan")]}, "std must be numbers above 0"),
        ({"resolution": 0}, "resolution must be a whole number from 1 to 8192, not 0"),
        ({"resolution": True}, "resolution must be a whole number"),
        ({"stored_size": "16"}, "stored_size must be a whole number from 1 to 8192, not '16'"),
        ({"augment": None}, "augment must be text"),
        ({"crop": 3}, "unknown key 'crop'"),
    ],
)
def test_wrong_values_are_one_line(change, reason):
    refused(f"^preprocessing: {reason}", Preprocessing.from_dict, GOOD | change)


def test_missing_keys_and_other_things():
    with pytest.raises(InputError, match="preprocessing: stored_size is missing"):
        Preprocessing.from_dict({name: value for name, value in GOOD.items() if name != "stored_size"})
    refused("preprocessing: needs augment, resolution", Preprocessing.from_dict, [1, 2])
