"""A model of timm with joint labels, on digits; needs timm: the extra `timm`.

No download; takes a few seconds. `pretrained=True` would have timm download its published weights. timm is
imported last: where torchvision is built for CUDA and torch is not, `import timm` alone fails.
"""

import sla
from sla.datasets.load import load

# By name: the run can be opened by anyone who has timm.
run = sla.fit(
    load("digits"),
    out="runs/timm",
    backbone="timm:resnet10t",
    model__options={"in_channels": 1},
    model__resolution=32,
    augment="resized(0.5)",
    method="sla+sd",
    run__iterations=6,
    run__batch_size=32,
    run__compile=False,
)
print(f"by name: {run.result['accuracies']['last']['test']['distilled']['top1']:.1f}%")

# As a module: any model that gives features; its width is measured.
import timm  # noqa: E402

module = timm.create_model("resnet10t", num_classes=0, in_chans=1)
model = sla.create(module, 10, sla.SLA(distill=True), num_features=module.num_features)
sla.save(model, "runs/timm.safetensors")
fresh = timm.create_model("resnet10t", num_classes=0, in_chans=1)
again = sla.load("runs/timm.safetensors", backbone=fresh)
print(f"as a module: {again.num_features} features, {again.num_classes} classes")
