"""Backbones by name: images (B, C, H, W) in, pooled features (B, num_features) out.

A backbone is an `nn.Module` with `num_features`, `forward_features` (the map before pooling) and, where
published weights exist, `preprocessing` (the input they expect). It knows nothing of heads or classes.
A family of them is one file in this folder and one decorator in it.
"""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from sla.errors import InputError, nearest

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Preprocessing", "create_backbone", "list_backbones", "register"]

Factory = Callable[..., "nn.Module"]

_FACTORIES: dict[str, Factory] = {}
_PATTERNS: dict[str, Factory] = {}


class Preprocessing(NamedTuple):
    """The input that published weights expect: (pixels in [0, 1] - mean) / std, squares of `resolution`."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    resolution: int


def register(*names: str, pattern: str | None = None) -> Callable[[Factory], Factory]:
    """Decorate `factory(name, *, in_channels=3, ...)`, which makes every backbone of these names.

    A name that ends in a colon stands for a library: `timm:` makes every `timm:<name>`. A `pattern` stands
    for names that are not listed: every name that matches it as a whole. The options of a backbone are the
    keyword-only arguments of its factory.
    """

    def add(factory: Factory) -> Factory:
        for name in names:
            if name in _FACTORIES:
                raise InputError(f"backbone {name!r} is registered twice")
            _FACTORIES[name] = factory
        if pattern is not None:
            _PATTERNS[pattern] = factory
        return factory

    return add


def list_backbones() -> list[str]:
    """The names `create_backbone` knows, without those of other libraries."""
    names = [name for name in _factories() if not name.endswith(":")]
    return sorted(names, key=lambda name: [int(s) if s.isdigit() else s for s in re.split(r"(\d+)", name)])


def create_backbone(name: str, **options: Any) -> "nn.Module":
    """The backbone of this name, such as `resnet32` or `timm:convnext_atto`.

    Every backbone takes `in_channels` (3); the others' options are told when one is wrong.
    """
    library, colon, _ = name.partition(":")
    factory = _factories().get(library + colon)
    for pattern in _PATTERNS:
        if factory is None and re.fullmatch(pattern, name):
            factory = _PATTERNS[pattern]
    if factory is None:
        raise InputError(f"no backbone is called {name!r}{nearest(name, [*list_backbones(), 'timm:<name>'])}")
    _check_options(name, factory, options)
    try:
        return factory(name, **options)
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError, ZeroDivisionError) as error:
        if not options:
            raise
        reason = str(error).splitlines()[0]
        raise InputError(f"backbone {name!r}: its options {options!r} do not go: {reason}") from error


def _factories() -> dict[str, Factory]:
    # The families are imported at the first use: they import torch.
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return _FACTORIES


def _check_options(name: str, factory: Factory, options: dict[str, Any]) -> None:
    parameters = inspect.signature(factory).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for option in options:
        if option == "pretrained" and option not in known and not takes_any:
            raise InputError(
                f"backbone {name!r}: no weights are published with it here; efficientnet_lite0 has"
            )
        if option not in known and not takes_any:
            raise InputError(f"backbone {name!r} has no option {option!r}{nearest(option, known)}")
    channels = options.get("in_channels", 3)
    if not isinstance(channels, int) or channels < 1:
        raise InputError(f"in_channels of backbone {name!r} must be a whole number from 1, not {channels!r}")
