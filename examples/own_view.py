"""Views of your own: brightness turned over, as part of the label.

No download; takes a few seconds. A view keeps the shape of a batch; view 0 is the unchanged image. Good views
are ones that the network can recognise and that no augmentation makes: then the labels are consistent.
"""

import torch

import sla
from sla.datasets.load import load


class Negative(sla.Views):
    """The image, and its negative; pixels are standardised, so the sign turns brightness over."""

    names = ("unchanged", "negative")

    def apply(self, input, view):
        return -input if view else input


views = Negative() * sla.Rotation(0, 180)  # four views: each of both, turned or not
images = load("digits").test.read(range(3)).images / 127.5 - 1
assert torch.equal(sla.expand_views(images, views)[2], -images[0])  # image 0, view 2

settings = {"backbone": "resnet8", "run__iterations": 20, "run__batch_size": 64, "run__compile": False}
run = sla.fit(load("digits"), out="runs/negative", method=sla.SLA(views), **settings)
for inference, scores in run.result["accuracies"]["last"]["test"].items():
    print(f"{inference}: {scores['top1']:.1f}%")

again = sla.open_run("runs/negative", views=views)  # a file cannot hold code: it is passed again
print(", ".join(again.model.method.views.names))
