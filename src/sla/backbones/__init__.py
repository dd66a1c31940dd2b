"""Backbones by name: images (B, C, H, W) in, pooled features (B, num_features) out.

A backbone is an `nn.Module` with `num_features` and `forward_features` (the map before pooling). It knows
nothing of heads or classes. A family of them is one file in this folder and one decorator in it, which also
says whether weights are published. A backbone of your own is a class or factory, `package.module:Name`.
"""

import copy
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from sla.errors import InputError, nearest
from sla.plugins import import_plugin, is_allowed, is_passed, is_plugin_name

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "PRETRAINED",
    "ExpectedInput",
    "Weights",
    "create_backbone",
    "find_weights",
    "list_backbones",
    "register",
]

PRETRAINED = "efficientnet_lite0"  # whose published weights are used unless another backbone is named

Factory = Callable[..., "nn.Module"]


class ExpectedInput(NamedTuple):
    """The input that published weights expect: (pixels in [0, 1] - mean) / std, squares of `resolution`."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    resolution: int


class Weights(NamedTuple):
    """Published weights of a backbone: the input they expect, and whether they are on this machine."""

    input: ExpectedInput
    available: bool  # without a download


_FACTORIES: dict[str, Factory] = {}
_PATTERNS: dict[str, Factory] = {}
_WEIGHTS: dict[str, Callable[[str], Weights | None]] = {}


def register(
    *names: str, pattern: str | None = None, weights: Callable[[str], Weights | None] | None = None
) -> Callable[[Factory], Factory]:
    """Decorate `factory(name, *, in_channels=3, ...)`, which makes every backbone of these names.

    `weights(name)` says what is published with them, without building anything.
    A name that ends in a colon stands for a library: `timm:` makes every `timm:<name>`. A `pattern` stands
    for names that are not listed: every name that matches it as a whole. The options of a backbone are the
    keyword-only arguments of its factory.
    """

    def add(factory: Factory) -> Factory:
        for name in names:
            if name in _FACTORIES:
                raise InputError(f"backbone {name!r} is registered twice")
            _FACTORIES[name] = factory
            if weights is not None:
                _WEIGHTS[name] = weights
        if pattern is not None:
            _PATTERNS[pattern] = factory
        return factory

    return add


def list_backbones() -> list[str]:
    """The names `create_backbone` knows, without those of other libraries."""
    names = [name for name in _factories() if not name.endswith(":")]
    return sorted(names, key=lambda name: [int(s) if s.isdigit() else s for s in re.split(r"(\d+)", name)])


def find_weights(name: str) -> Weights | None:
    """What is published for the backbone of this name; None for nothing. No network is built."""
    _factories()
    library, colon, _ = name.partition(":")
    described = _WEIGHTS.get(library + colon)
    return described(name) if described is not None else None


def create_backbone(name: str, **options: Any) -> "nn.Module":
    """The backbone of this name, such as `resnet32` or `timm:convnext_atto`, or `package.module:Name`.

    Every backbone takes `in_channels` (3); the error for a wrong option lists the right ones.
    """
    factory = check_backbone(name, options)
    if factory is None:
        return _own_backbone(name, options)
    try:
        return factory(name, **options)
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError, ZeroDivisionError) as error:
        if not options:
            raise
        reason = str(error).splitlines()[0]
        raise InputError(f"backbone {name!r}: invalid options {options!r}: {reason}") from error


def check_backbone(name: str, options: dict[str, Any]) -> Factory | None:
    """Refuse an unknown name or option without building anything; gives what builds it, None for a plugin."""
    library, colon, _ = name.partition(":")
    factory = _factories().get(library + colon)
    if factory is None and is_allowed(name):
        return None
    matching = (made for pattern, made in _PATTERNS.items() if re.fullmatch(pattern, name))
    factory = factory or next(matching, None)
    if factory is None:
        trusted = f" unless you trust the custom code of that name and --allow {name}"
        hint = nearest(name, [*list_backbones(), "timm:<name>"])
        raise InputError(f"no backbone is called {name!r}{trusted if is_plugin_name(name) else ''}{hint}")
    _check_options(name, factory, options)
    return factory


def _own_backbone(name: str, options: dict[str, Any]) -> "nn.Module":
    if is_passed(name):
        return _passed_backbone(import_plugin(name), options)
    try:
        backbone = import_plugin(name)(**options)
    except TypeError as error:
        raise InputError(f"backbone {name!r}: invalid options {options!r}: {error}") from error
    if not isinstance(getattr(backbone, "num_features", None), int):
        raise InputError(f"backbone {name!r}: it has no num_features, the width of its features")
    return backbone


def _passed_backbone(module: Any, options: dict[str, Any]) -> "nn.Module":
    """A copy of a module, with the width of its features as `num_features`."""
    unknown = [option for option in options if option not in ("in_channels", "num_features")]
    if unknown:
        raise InputError(f"options {', '.join(unknown)} are for named backbones, not for a module of yours")
    backbone = copy.deepcopy(module)
    if "num_features" in options:
        backbone.num_features = options["num_features"]
    return backbone


def count_features(backbone: "nn.Module", shape: tuple[int, ...]) -> int:
    """D of a module that makes features (B, D), or maps (B, D, H, W), of images of this shape (C, H, W)."""
    import torch

    kind, was_training = type(backbone).__name__, backbone.training
    if isinstance(backbone, torch.jit.ScriptModule):
        raise InputError("a module of torch.jit cannot be trained here: pass the module that it was made of")
    if any(value.is_meta for value in (*backbone.parameters(), *backbone.buffers())):
        raise InputError(f"the backbone {kind} is on the meta device: it has no weights; to_empty('cpu')")
    device = next((parameter.device for parameter in backbone.parameters()), torch.device("cpu"))
    try:
        with torch.no_grad():
            output = backbone.eval()(torch.zeros(2, *shape, device=device))
    except Exception as error:  # whatever a module of one's own raises
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"the backbone {kind} fails on a batch {(2, *shape)}: {reason}") from error
    finally:
        backbone.train(was_training)
    if not isinstance(output, torch.Tensor) or output.ndim not in (2, 4) or len(output) != 2:
        got = tuple(output.shape) if isinstance(output, torch.Tensor) else f"a {type(output).__name__}"
        raise InputError(
            f"the backbone {kind} gives {got} for two images, not features (2, D) or (2, D, H, W)"
        )
    if output.dtype != torch.float32:
        raise InputError(f"the backbone {kind} gives {output.dtype}, not float32: cast its output")
    return int(output.shape[1])


def _factories() -> dict[str, Factory]:
    # The families are imported at the first use: they import torch.
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return _FACTORIES


def _check_options(name: str, factory: Factory, options: dict[str, Any]) -> None:
    parameters = inspect.signature(factory).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for option in [option for option in options if option not in known and not takes_any]:
        if option == "pretrained":
            why = f"no weights are published with it here; {PRETRAINED} has some"
            raise InputError(f"backbone {name!r}: {why}")
        raise InputError(f"backbone {name!r} has no option {option!r}{nearest(option, known)}")
    channels = options.get("in_channels", 3)
    if not isinstance(channels, int) or channels < 1:
        raise InputError(f"in_channels of backbone {name!r} must be a whole number from 1, not {channels!r}")
