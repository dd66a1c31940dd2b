"""A plain PyTorch loop with joint labels and self-distillation, on digits with ten training images per class.

No download; takes a few seconds on one core. Prints the test accuracy of the three kinds of inference:
single (one pass, joint head), aggregated (four passes), distilled (one pass, the student).
The lines that differ from a loop without label augmentation are marked with `sla`.
"""

import torch
from torch import nn

from sla import JointHead, PlainHead, Rotation, aggregate_views, distillation_loss, expand_views, sla_loss
from sla.datasets.load import load
from sla.sampling.protocols import limited

torch.manual_seed(0)
digits = load("digits")
train, test = limited(digits.train, per_class=10), digits.test
images, targets = train.read(range(len(train))).images / 127.5 - 1, torch.as_tensor(train.targets)


def block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


backbone = nn.Sequential(
    block(1, 32), nn.MaxPool2d(2), block(32, 64), nn.MaxPool2d(2), block(64, 64), nn.Flatten()
)
views = Rotation()  # sla: 0, 90, 180 and 270 degrees
joint = JointHead(64 * 2 * 2, 10, len(views))  # sla: in place of nn.Linear(256, 10)
student = PlainHead(64 * 2 * 2, 10)  # sla: used alone after training
model = nn.ModuleList([backbone, joint, student])
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 150)

for _ in range(150):
    rows = torch.randint(len(images), (50,))
    target = targets[rows]
    shift = torch.randint(-1, 2, (2,)).tolist()
    features = backbone(expand_views(images[rows].roll(shift, (2, 3)), views))  # sla: 50 images, 200 views
    logits, student_logits = joint(features), student(features[:: len(views)])
    loss = sla_loss(logits, target, len(views))  # sla: in place of cross_entropy(logits, target)
    loss = loss + distillation_loss(logits, student_logits, len(views))  # sla: learn the average
    loss = loss + nn.functional.cross_entropy(student_logits, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()

model.eval()
with torch.inference_mode():
    images, targets = test.read(range(len(test))).images / 127.5 - 1, torch.as_tensor(test.targets)
    features = backbone(images)
    predictions = {
        "single": joint.block(features, 0),
        "aggregated": aggregate_views(joint(backbone(expand_views(images, views))), len(views)),
        "distilled": student(features),
    }
for inference, scores in predictions.items():
    print(f"{inference}: {100 * (scores.argmax(1) == targets).double().mean():.1f}%")
