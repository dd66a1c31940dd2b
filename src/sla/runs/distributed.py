"""The processes of a run: alone, or started by torchrun. Nothing else knows how many there are."""

import os
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

Value = TypeVar("Value")


class ProcessNumbers(NamedTuple):
    """What torchrun says about this process; a process on its own is 0 of 1."""

    rank: int
    world_size: int
    local_rank: int


def process_numbers() -> ProcessNumbers:
    """The numbers in the environment: the only place where they are read."""
    names = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))
    return ProcessNumbers(*(int(os.environ.get(name, default)) for name, default in names))


@dataclass(frozen=True)
class Group:
    """This process among its peers."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @property
    def leads(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def gather(self, rows: Tensor) -> Tensor:
        """The rows (n, ...) of all processes in the order of their ranks, (world_size * n, ...).

        Gradients flow back to the process that a row came from, summed over those that used it.
        """
        return rows if self.world_size == 1 else _Gather.apply(rows, self)

    def share(self, value: Value | None) -> Value:
        """What the leading process gave, in every process."""
        if self.world_size > 1:
            box = [value]
            dist.broadcast_object_list(box)
            value = box[0]
        return value  # type: ignore[return-value]

    def share_number(self, value: int) -> int:
        """What the leading process gave, for a whole number: quick enough to be called once per step."""
        if self.world_size == 1:
            return value
        given = torch.tensor(value if self.leads else 0, dtype=torch.int64, device=self._device())
        return int(self.sum(given).item())

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, whether any process says so."""
        if self.world_size == 1:
            return flags
        return tuple(
            self.sum(torch.tensor(flags, dtype=torch.float32, device=self._device())).bool().tolist()
        )

    def wait(self) -> None:
        """Until every process is here."""
        if self.world_size > 1:
            dist.barrier()

    def wrap(self, step: nn.Module) -> nn.Module:
        """The step with gradients averaged over the processes; batch norm synchronised where torch can."""
        if self.world_size == 1:
            return step
        device = next(step.parameters()).device
        if device.type == "cuda":
            step = nn.SyncBatchNorm.convert_sync_batchnorm(step)
            return nn.parallel.DistributedDataParallel(step, device_ids=[device.index])
        return nn.parallel.DistributedDataParallel(step)

    def _device(self) -> torch.device:
        return torch.device("cuda", self.local_rank) if dist.get_backend() == "nccl" else torch.device("cpu")


class _Gather(torch.autograd.Function):
    """all_gather with the gradient that torch's own lacks; every backend has the two calls it needs."""

    @staticmethod
    def forward(context: Any, rows: Tensor, group: Group) -> Tensor:
        rows = rows.contiguous()
        parts = [torch.empty_like(rows) for _ in range(group.world_size)]
        dist.all_gather(parts, rows)
        context.start, context.stop = group.rank * len(rows), (group.rank + 1) * len(rows)
        return torch.cat(parts)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].contiguous().clone()  # all_reduce writes into it
        dist.all_reduce(total)
        return total[context.start : context.stop], None


def join_group() -> Group:
    """The group that torchrun's environment describes; a process on its own is a group of one."""
    numbers = process_numbers()
    if numbers.world_size == 1:
        return Group()
    if not dist.is_initialized():
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(numbers.local_rank)
    return Group(dist.get_rank(), dist.get_world_size(), numbers.local_rank)


def leave_group(group: Group) -> None:
    """End the connections to the other processes."""
    if group.world_size > 1 and dist.is_initialized():
        dist.destroy_process_group()
