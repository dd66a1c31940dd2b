"""Heads: from features to logits of joint or plain labels."""

import math
from numbers import Integral

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sla.errors import InputError, nearest
from sla.labels import by_view

KINDS = ("linear", "cosine")
SCALE = 30.0  # of a cosine head


class JointHead(nn.Module):
    """Logits of the N*M joint labels, label y*M + j in row y*M + j.

    kind="linear" is an affine map. kind="cosine" gives scale * cos(feature, weight row) without bias. The
    scale is part of the head, so code that uses its logits (loss, calibration, export) needs no special case.
    """

    def __init__(
        self, in_features: int, num_classes: int, num_views: int, kind: str = "linear", scale: float = SCALE
    ) -> None:
        super().__init__()
        if kind not in KINDS:
            raise InputError(f"unknown kind of head {kind!r}{nearest(kind, KINDS)}")
        for name, value in (
            ("in_features", in_features),
            ("num_classes", num_classes),
            ("num_views", num_views),
        ):
            if not is_whole(value, 1):
                raise InputError(f"a head needs {name} of at least 1, a whole number, not {value!r}")
        self.in_features, self.num_classes, self.num_views = in_features, num_classes, num_views
        self.kind, self.scale = kind, scale
        rows = num_classes * num_views
        self.weight = nn.Parameter(self._new_weights(torch.empty(rows, in_features)))
        self.bias: nn.Parameter | None = None
        if kind == "linear":
            self.bias = nn.Parameter(_new_rows(torch.empty(rows), in_features))

    def forward(self, features: Tensor) -> Tensor:
        """All joint logits: (B, D) -> (B, N*M)."""
        return self._logits(features, self.weight, self.bias)

    def block(self, features: Tensor, view: int) -> Tensor:
        """The class logits of one view, (B, D) -> (B, N); only these are computed."""
        if not 0 <= view < self.num_views:
            raise InputError(f"view {view} is out of range: this head has {self.num_views}")
        bias = None if self.bias is None else self.bias[view :: self.num_views]
        return self._logits(features, self.weight[view :: self.num_views], bias)

    def own_blocks(self, features: Tensor) -> Tensor:
        """The class logits of each view's own block, for interleaved views: (B*M, D) -> (B, M, N).

        M times cheaper than `forward`, which also computes the M*(M-1) blocks of other views.
        """
        if features.ndim != 2 or features.shape[0] % self.num_views or features.shape[1] != self.in_features:
            wanted, found = f"(B*{self.num_views}, {self.in_features})", tuple(features.shape)
            raise InputError(f"features of all views must be {wanted}, not {found}")
        features = features.unflatten(0, (-1, self.num_views)).transpose(0, 1)  # (M, B, D)
        weight = by_view(self.weight.T, self.num_views).permute(2, 0, 1)  # (M, D, N)
        if self.kind == "cosine":
            logits = self.scale * torch.bmm(F.normalize(features, dim=-1), F.normalize(weight, dim=1))
        else:
            assert self.bias is not None
            logits = torch.baddbmm(by_view(self.bias, self.num_views).T.unsqueeze(1), features, weight)
        return logits.transpose(0, 1)

    def mean_of_blocks(self, features: Tensor, views: Tensor | None = None) -> Tensor:
        """The mean over an image's views of each view's own block: (B*M, D), interleaved -> (B, N).

        With `views` (B, k), the view numbers of each image, (B*k, D) -> (B, N). One matrix product: the
        features of all views side by side, those of missing views zero, with the blocks side by side.
        """
        features, weight, bias = self.linear_form(features)
        count = self.num_views if views is None else views.shape[1]
        features = features.unflatten(0, (-1, count))
        own = features.new_ones(features.shape[0], self.num_views)
        if views is not None:
            seen = (views.unsqueeze(2) == torch.arange(self.num_views, device=views.device)).to(features)
            features, own = seen.mT @ features, seen.sum(1)
        logits = F.linear(features.flatten(1), weight.unflatten(0, (-1, self.num_views)).flatten(1))
        if bias is not None:
            logits = logits + F.linear(own, by_view(bias, self.num_views))
        return logits / count

    def linear_form(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """(input, weight, bias) whose `F.linear` are the logits of these features."""
        if self.kind == "linear":
            return features, self.weight, self.bias
        return self.scale * F.normalize(features, dim=-1), F.normalize(self.weight, dim=-1), None

    def _logits(self, features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.kind == "linear":
            return F.linear(features, weight, bias)
        return self.scale * F.linear(F.normalize(features, dim=-1), F.normalize(weight, dim=-1))

    @torch.no_grad()
    def grow(self, num_new: int) -> None:
        """Append `num_new` classes; the logits of the old ones do not change.

        The parameters are new objects: pass them to the optimiser again.
        """
        if not is_whole(num_new, 1):
            raise InputError(f"a head grows by at least one class, a whole number, not {num_new!r}")
        rows = num_new * self.num_views
        new = self._new_weights(self.weight.new_empty(rows, self.in_features))
        self.weight = nn.Parameter(torch.cat([self.weight, new]), requires_grad=self.weight.requires_grad)
        if self.bias is not None:
            new = _new_rows(self.bias.new_empty(rows), self.in_features)
            self.bias = nn.Parameter(torch.cat([self.bias, new]), requires_grad=self.bias.requires_grad)
        self.num_classes += num_new

    def _new_weights(self, rows: Tensor) -> Tensor:
        """As torch.nn.Linear's; rows of length 1 for a cosine head, whose step is one of the angle then."""
        if self.kind == "linear":
            return _new_rows(rows)
        return F.normalize(nn.init.uniform_(rows, -1, 1), dim=1)

    def extra_repr(self) -> str:
        """For print(model)."""
        scale = f", scale={self.scale:g}" if self.kind == "cosine" else ""
        return f"{self.in_features}, {self.num_classes} classes x {self.num_views} views, {self.kind}{scale}"


class PlainHead(JointHead):
    """Logits of the N classes: a joint head with one view."""

    def __init__(
        self, in_features: int, num_classes: int, kind: str = "linear", scale: float = SCALE
    ) -> None:
        super().__init__(in_features, num_classes, 1, kind, scale)


def check_device(device: str | torch.device) -> None:
    """Raise an error if a device is unknown or not there."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError):
        raise InputError(f"no device {device!r} on this machine; cpu always works") from None


def is_whole(value: object, least: int) -> bool:
    """Whether this is an integer (Python or numpy) of at least `least`."""
    return isinstance(value, Integral) and int(value) >= least


def _new_rows(rows: Tensor, in_features: int | None = None) -> Tensor:
    """Initialise new parameters as torch.nn.Linear does: uniform within 1 / sqrt(in_features)."""
    bound = 1 / math.sqrt(in_features or rows.shape[1])
    return nn.init.uniform_(rows, -bound, bound)
