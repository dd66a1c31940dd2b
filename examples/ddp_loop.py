"""A loop of your own in several processes: `torchrun --nproc-per-node 2 examples/ddp_loop.py`.

No download; takes a few seconds. DistributedDataParallel wraps the classifier itself: calling it with images
and targets gives the losses, and `backward` averages the gradients. Prints one line: the test accuracy.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import sla
from sla.datasets.load import load

EPOCHS = 2

dist.init_process_group("gloo")  # "nccl" with one GPU per process
digits = load("digits")


def tensors(part):
    return part.read(range(len(part))).images / 127.5 - 1, torch.as_tensor(part.targets)


torch.manual_seed(0)  # the same first weights in every process
model = sla.create("convnet4", 10, sla.SLA(distill=True), in_channels=1, width=16)
wrapped = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
dataset = TensorDataset(*tensors(digits.train))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=32, sampler=sampler, drop_last=True)

for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for images, targets in loader:
        optimizer.zero_grad()
        wrapped(images, targets)["loss"].backward()  # sla: the dict of losses, in place of a criterion
        optimizer.step()

first = next(model.parameters()).detach().clone()
dist.broadcast(first, 0)
assert torch.equal(first, next(model.parameters())), "the processes have different weights"
if dist.get_rank() == 0:
    images, targets = tensors(digits.test)
    labels = model.eval().predict(images, "aggregated").labels
    print(f"{dist.get_world_size()} processes: {100 * (labels == targets).double().mean():.1f}%")
dist.destroy_process_group()
