"""A Hugging Face dataset as training data; needs their library: pip install datasets.

No download: the digits of this package become such a dataset first. Yours comes from `datasets.load_dataset`;
a `DatasetDict` with train, validation and test works as it is. The columns of image and label are found by
their features, or named: `columns=("img", "fine_label")`.
"""

from PIL import Image as Pillow

import sla
from datasets import ClassLabel, Dataset, Features, Image
from sla.datasets.load import load

digits = load("digits")
names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
features = Features({"image": Image(), "label": ClassLabel(names=names)})


def as_dataset(part):
    pictures = [Pillow.fromarray(image[0].numpy()) for image in part.read(range(len(part))).images]
    return Dataset.from_dict({"image": pictures, "label": part.targets.tolist()}, features=features)


train, test = as_dataset(digits.train), as_dataset(digits.test)
run = sla.fit(
    {"train": train, "test": test},
    out="runs/hugging-face",
    backbone="resnet8",
    run__iterations=20,
    run__batch_size=64,
    run__compile=False,
)
print(f"aggregated: {run.result['accuracies']['last']['test']['aggregated']['top1']:.1f}%")
prediction = run.predict([test[row]["image"] for row in range(5)])
print(prediction.names, prediction.labels.tolist())
