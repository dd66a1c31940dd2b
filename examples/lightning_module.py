"""Lightning's Trainer around a classifier, on digits; needs Lightning: the extra `lightning`.

No download; takes a few seconds. Prints the validation accuracy of every kind of inference, and loads the
checkpoint again. sla's module is imported first: `import lightning` alone fails where torchvision does not
fit torch.
"""

import torch
from torch.utils.data import DataLoader, TensorDataset

import sla
from sla.adapters.lightning import SLAModule
from sla.datasets.load import load

from lightning.pytorch import Trainer  # isort: skip

digits = load("digits")


def loader(part, **options):
    images = part.read(range(len(part))).images / 127.5 - 1
    return DataLoader(TensorDataset(images, torch.as_tensor(part.targets)), batch_size=64, **options)


torch.manual_seed(0)
model = sla.create("convnet4", 10, sla.SLA(distill=True), in_channels=1, width=16)
module = SLAModule(model, configure=lambda classifier: torch.optim.AdamW(classifier.parameters(), 3e-3))
trainer = Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
)
trainer.fit(module, loader(digits.train, shuffle=True), loader(digits.test))
for name, value in trainer.callback_metrics.items():
    if name.startswith("val/"):
        print(f"{name.removeprefix('val/')}: {100 * float(value):.1f}%")

trainer.save_checkpoint("digits.ckpt")
again = SLAModule.load_from_checkpoint("digits.ckpt", weights_only=True)  # the classifier is described in it
images = digits.test.read(range(5)).images / 127.5 - 1
assert torch.equal(again.model.eval()(images), model.eval()(images))
