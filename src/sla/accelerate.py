"""A trained classifier made faster for many images: the same numbers to rounding, and the model unchanged.

Batch norm is folded into convolutions and the weights lie channels last; where it pays, onnxruntime computes
the backbone.
"""

import copy
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sla.classifier import Classifier
from sla.export import convert, import_onnxruntime

TOLERANCE = 1e-4  # of features, relative to the largest one
MIN_IMAGES = 32  # images from which folding, which costs a few passes, pays
MIN_SECONDS_LEFT = 40.0  # of work from which building a graph for onnxruntime, some ten seconds, pays


def fold_batch_norm(module: nn.Module, example: Tensor) -> int:
    """Fold each batch norm into the convolution whose output is its input; returns how many, in place.

    (w * x + b - mean) / sqrt(var + eps) * weight + bias is one convolution. Which belong together is found by
    a pass over `example`, so any network will do. Only for a module in eval mode. A batch norm without
    running statistics, or of a class derived from `BatchNorm2d`, which may do more, stays.
    """
    came_from: dict[int, tuple[nn.Conv2d, Tensor]] = {}  # tensors are kept: a number is not given again
    pairs: list[tuple[nn.Conv2d, nn.BatchNorm2d]] = []
    calls: dict[nn.Module, int] = {}

    def watch(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        calls[module] = calls.get(module, 0) + 1
        if isinstance(module, nn.Conv2d):
            came_from[id(output)] = module, output
        elif isinstance(module, nn.BatchNorm2d) and inputs and id(inputs[0]) in came_from:
            pairs.append((came_from[id(inputs[0])][0], module))

    watched = (each for each in module.modules() if isinstance(each, nn.Conv2d) or _foldable(each))
    hooks = [each.register_forward_hook(watch) for each in watched]
    try:
        with torch.no_grad():
            module(example)
    finally:
        for hook in hooks:
            hook.remove()
    names = {each: name for name, each in module.named_modules()}
    pairs = [(conv, norm) for conv, norm in pairs if calls[conv] == calls[norm] == 1]
    for conv, norm in pairs:
        _fold(conv, norm)
        module.set_submodule(names[norm], nn.Identity())
    return len(pairs)


def _foldable(module: nn.Module) -> bool:
    return type(module) is nn.BatchNorm2d and module.running_var is not None


@torch.no_grad()
def _fold(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    scale = scale if norm.weight is None else scale * norm.weight.double()
    shift = (0 if conv.bias is None else conv.bias.double()) - norm.running_mean.double()
    bias = shift * scale + (0 if norm.bias is None else norm.bias.double())
    conv.weight.copy_(conv.weight.double() * scale.view(-1, 1, 1, 1))
    conv.bias = nn.Parameter(bias.to(conv.weight.dtype), requires_grad=False)


@torch.inference_mode()
def accelerate(model: Classifier, example: Tensor) -> Classifier:
    """A copy for inference with batch norm folded and channels last; itself where that changes its features.

    `example` is a few images. The copy shares the heads with the model.
    """
    with torch.inference_mode(False):
        backbone = copy.deepcopy(model.backbone).eval().requires_grad_(False)
        if example.device.type == "cpu":
            backbone = backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        fold_batch_norm(backbone, example.clone())
    return _with_backbone(model, backbone) if _same(model.backbone, backbone, example) else model


class OnnxBackbone(nn.Module):
    """A backbone as a graph of onnxruntime, on the CPU."""

    def __init__(self, backbone: nn.Module, example: Tensor) -> None:
        super().__init__()
        onnxruntime = import_onnxruntime()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors
        options.intra_op_num_threads = torch.get_num_threads()
        data = convert(backbone, example, {})
        self.session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D)."""
        (features,) = self.session.run(None, {"images": input.numpy()})
        return torch.from_numpy(features)


def try_onnxruntime(model: Classifier, images: Tensor) -> Classifier:
    """A copy whose backbone onnxruntime computes; itself where that is missing, slower or not the same."""
    example = images[:1].repeat(3, 1, 1, 1)  # with one image, torch would fix the size of the batch
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # torch explains at length what it cannot convert
    try:
        with torch.inference_mode(False), torch.no_grad():
            backbone = OnnxBackbone(model.backbone, example.clone())
        same = _same(model.backbone, backbone, images)
        faster = same and _seconds(backbone, images) < _seconds(model.backbone, images)
    except Exception:  # not installed, or not convertible: the errors of onnxruntime have no common type
        return model
    finally:
        logging.disable(level)
    return _with_backbone(model, backbone) if faster else model


class Engine:
    """The fastest copy of a model for a pass over many images, found while the pass runs.

    `enabled`: else the model itself is used throughout.
    """

    def __init__(self, model: Classifier, images: int, enabled: bool = True) -> None:
        self.model, self.left, self.batches = model, images, 0
        self.enabled = enabled and images >= MIN_IMAGES

    @contextmanager
    def on(self, images: Tensor) -> Iterator[Classifier]:
        """The model to use for this batch (B, C, H, W), inside the block, which is timed."""
        if self.enabled and not self.batches:
            self.model = accelerate(self.model, images[:2])
        start = time.monotonic()
        yield self.model
        seconds, count = time.monotonic() - start, len(images)
        self.left, self.batches = self.left - count, self.batches + 1
        # The first batch is slower than the others: it allocates.
        on_cpu = self.enabled and images.device.type == "cpu"
        if on_cpu and self.batches == 2 and seconds * self.left / count > MIN_SECONDS_LEFT:
            self.model = try_onnxruntime(self.model, images)


def _with_backbone(model: Classifier, backbone: nn.Module) -> Classifier:
    fast = copy.copy(model)
    fast._modules = dict(model._modules)
    fast.backbone = backbone
    return fast


@torch.inference_mode()
def _same(first: nn.Module, second: nn.Module, images: Tensor) -> bool:
    expected, found = first(images), second(images)
    return bool((found - expected).abs().max() <= TOLERANCE * expected.abs().max())


@torch.inference_mode()
def _seconds(module: nn.Module, images: Tensor) -> float:
    start = time.monotonic()
    module(images)
    return time.monotonic() - start
