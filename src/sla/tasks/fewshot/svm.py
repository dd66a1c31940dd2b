"""MetaOptNet's SVM: the dual of Crammer and Singer's, by a batched interior-point method of our own.

The problem, for the kernel K (S, S) of the support images and their labels Y one-hot (S, way):

    minimise  1/2 tr(a^T (K + I) a) - <Y, a>   over a (S, way),   a <= C Y,   sum over classes of a = 0.

Its Hessian has a block for each class, and only the sums join the blocks: a Newton step costs `way` systems
of S x S and one more, never one of S * way.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from sla.errors import InputError
from sla.labels import is_readable
from sla.tasks.fewshot.head import Head, one_hot

DIAGONAL = 1.0  # added to the kernel
TOLERANCE = 1e-12  # of the duality gap, a number of the problem; an episode that is there stays as it is
PART = 1 << 18  # values of the systems of Newton's method that are solved at a time
SHORT_OF_WALL = 0.99  # share of the way to the nearest wall that a step goes


class SVM(Head):
    """Logits scale * K_qs a. Few iterations serve at test time, where only the largest logit matters."""

    def __init__(
        self, scale: float = 1.0, c: float = 0.1, iterations: int = 15, test_iterations: int = 3
    ) -> None:
        super().__init__(scale)
        counts = (iterations, test_iterations)
        if not c > 0 or not all(isinstance(count, int) and count > 0 for count in counts):
            given = f"{c:g}, {iterations}, {test_iterations}"
            raise InputError(f"svm needs c above 0 and at least 1 iteration, not {given}")
        self.c, self.iterations, self.test_iterations = c, iterations, test_iterations

    def adapt(self, support: Tensor, targets: Tensor, way: int) -> Tensor:
        """(E, S, D), (E, S) -> weights (E, way, D)."""
        iterations = self.iterations if self.training else self.test_iterations
        labels = one_hot(targets, way, support)
        return solve_svm(support @ support.mT, labels, self.c, iterations).mT @ support


def solve_svm(kernel: Tensor, labels: Tensor, c: float = 0.1, iterations: int = 15) -> Tensor:
    """The dual variables a (E, S, way) for kernels (E, S, S) and one-hot labels (E, S, way).

    Differentiable in the kernel, through the conditions that hold at the optimum.
    """
    solution: Tensor = _Solve.apply(kernel.double(), labels.double(), c, iterations)
    return solution.to(kernel.dtype)


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: Tensor, labels: Tensor, c: float, iterations: int) -> Tensor:
        kernel = kernel + DIAGONAL * torch.eye(kernel.shape[1], dtype=kernel.dtype, device=kernel.device)
        parts = [interior_point(k, y, c, iterations) for k, y in _parts(labels, kernel, labels)]
        solution, curvature = map(torch.cat, zip(*parts, strict=True))
        ctx.save_for_backward(kernel, solution, curvature)
        return solution

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        # Where dK moves the optimum: (K + D) da + d(nu) = -dK a and sum da = 0, the system of a Newton step.
        kernel, solution, curvature = ctx.saved_tensors  # type: ignore[attr-defined]
        (gradient,) = gradients
        moved = torch.cat(
            [
                Newton(own, bend).solve(pull, torch.zeros_like(pull[..., 0]))[0]
                for own, bend, pull in _parts(solution, kernel, curvature, gradient)
            ]
        )
        return -moved @ solution.mT, None, None, None


def _parts(labels: Tensor, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Some episodes at a time: on a CPU, systems that do not fit its cache cost more than a loop saves."""
    episodes, count, way = labels.shape
    some = max(PART // (way * count * count), 1) if labels.device.type == "cpu" else max(episodes, 1)
    return zip(*(tensor.split(some) for tensor in tensors), strict=True)


def interior_point(kernel: Tensor, labels: Tensor, c: float, iterations: int) -> tuple[Tensor, Tensor]:
    """Mehrotra's predictor and corrector from a point inside: a (E, S, way), and multiplier / slack at it."""
    way = labels.shape[2]
    # Inside the walls: half of C for the own class, taken from the others in equal parts.
    a = c / 2 * (labels - (1 - labels) / (way - 1))
    slack = c * labels - a
    force = labels - kernel @ a
    balance = force.amin(2) - 0.5  # (E, S): the multiplier of the sum
    wall = force - balance.unsqueeze(2)  # those of the walls, all above zero: force = wall + balance
    for _ in range(iterations):
        gap = (slack * wall).mean((1, 2))
        going = gap > TOLERANCE
        if is_readable(going) and not going.any():  # a device would have to wait for it; the rest is no-ops
            break
        newton = Newton(kernel, wall / slack)
        rest = labels - kernel @ a - wall - balance.unsqueeze(2)
        unsummed = -a.sum(2)

        def step(pull: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            """The direction in which slack * wall changes by -pull, to first order."""
            da, dbalance = newton.solve(rest + pull / slack, unsummed)  # noqa: B023
            return da, -da, (wall * da - pull) / slack, dbalance  # noqa: B023

        _, dslack, dwall, _ = step(slack * wall)
        far = _room(slack, dslack, wall, dwall)
        reached = ((slack + far * dslack) * (wall + far * dwall)).mean((1, 2), keepdim=True)
        centre = reached**3 / gap.clamp(min=TOLERANCE**2)[:, None, None] ** 2
        da, dslack, dwall, dbalance = step(slack * wall + dslack * dwall - centre)
        far = SHORT_OF_WALL * _room(slack, dslack, wall, dwall) * going[:, None, None]
        a, slack, wall = a + far * da, slack + far * dslack, wall + far * dwall
        balance = balance + far[..., 0] * dbalance
    return a, wall / slack


class Newton:
    """(K + D_k) u_k + v = b_k for each class k, sum_k u_k = e: solved by one factorisation for many b, e."""

    def __init__(self, kernel: Tensor, curvature: Tensor) -> None:
        blocks = kernel.unsqueeze(1) + torch.diag_embed(curvature.mT)  # (E, way, S, S)
        self.inverse = torch.cholesky_inverse(torch.linalg.cholesky(blocks))
        self.joint = torch.linalg.cholesky(self.inverse.sum(1))

    def solve(self, b: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        """b (E, S, way) and e (E, S) -> u (E, S, way) and v (E, S)."""
        free = (self.inverse @ b.mT.unsqueeze(3)).squeeze(3)  # (E, way, S)
        v = torch.cholesky_solve((free.sum(1) - e).unsqueeze(2), self.joint)
        return (free - (self.inverse @ v.unsqueeze(1)).squeeze(3)).mT, v.squeeze(2)


def _room(slack: Tensor, dslack: Tensor, wall: Tensor, dwall: Tensor) -> Tensor:
    """How far each episode may go before a slack or multiplier is zero, 1 at most: (E, 1, 1)."""
    both = torch.cat([slack, wall], 1) / -torch.cat([dslack, dwall], 1).clamp(max=-1e-300)
    return both.amin((1, 2), keepdim=True).clamp(max=1.0)
