"""A backbone, method, views or criterion given as an object: the keys that stand for it."""

import inspect
import json
import warnings
from dataclasses import fields, is_dataclass
from typing import Any

from torch import nn

from sla.criteria import cross_entropy
from sla.errors import InputError, SLAWarning
from sla.factory import text_of_views
from sla.methods import METHODS, Method, check_method, method_options
from sla.plugins import is_passed, passed_name
from sla.views import Views, check_views


def settings_of(
    backbone: Any = None, method: Any = None, views: Any = None, criterion: Any = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keys that these names or objects stand for, and the objects by role that keys cannot describe."""
    keys: dict[str, Any] = {}
    passed: dict[str, Any] = {}
    given = {"views": views, "criterion": criterion}
    if backbone is not None and not isinstance(backbone, str | nn.Module):
        raise InputError(f"a backbone is a name or a module, not {backbone!r}")
    if isinstance(method, str):
        keys["method.name"] = method
    elif method is not None:
        check_method(method)
        if not is_dataclass(type(method)):
            raise InputError(f"{type(method).__name__}: a method's class must be a frozen dataclass")
        for role, value in _of_method(method).items():
            if given[role] is not None:
                raise InputError(f"{role} is given twice, by the method and by {role}=")
            given[role] = value
        own = _method_keys(method)
        if not own:
            keys |= {"method.name": passed_name("method", method), "method.options": _options(method)[0]}
            passed["method"] = method
        keys |= own or {"method.head": method.head}
    if given["views"] is not None:
        given["views"] = _text_or_views(given["views"])
    if given["criterion"] is not None:
        _check_criterion(given["criterion"])
    for role, value in {"backbone": backbone, **given}.items():
        key = f"{'model' if role == 'backbone' else 'method'}.{role}"
        if isinstance(value, str):
            keys[key] = value
        elif value is not None:
            keys[key], passed[role] = passed_name(role, value), value
    return keys, passed


def _of_method(method: Method) -> dict[str, Any]:
    """The views and the criterion that a method was made with, where they are its own."""
    found: dict[str, Any] = {}
    if any(each.name == "views" and each.init for each in fields(method)):  # type: ignore[arg-type]
        found["views"] = method.views
    if method.criterion is not cross_entropy:
        found["criterion"] = method.criterion
    return found


def _check_criterion(criterion: Any) -> None:
    """Refuse what is no criterion; where that can be known, also what two arguments are wrong for."""
    if isinstance(criterion, str):
        return
    if not callable(criterion):
        raise InputError(f"a criterion is callable with logits and targets, not {criterion!r}")
    if isinstance(criterion, type):
        return
    try:
        inspect.signature(criterion).bind("logits", "target")
    except TypeError as error:
        name = getattr(criterion, "__name__", type(criterion).__name__)
        raise InputError(f"the criterion {name} is called with logits and targets: {error}") from None
    except ValueError:  # written in C
        return


def warn_of_uncompared(method: Method) -> None:
    """Say which options of a method that was passed again cannot be compared with those of its run."""
    _, others = _options(method)
    if others:
        what = f"{type(method).__name__}: {', '.join(others)}"
        warnings.warn(f"{what}: no plain data, so not compared with that of the resumed run", SLAWarning)


def _options(method: Method) -> tuple[dict[str, Any], list[str]]:
    """The options of a method of one's own that are plain data, and the names of the others."""
    plain: dict[str, Any] = {}
    others: list[str] = []
    for each in fields(method):  # type: ignore[arg-type]
        if each.init and each.name not in ("views", "criterion", "head"):
            try:
                plain[each.name] = json.loads(json.dumps(getattr(method, each.name)))
            except (TypeError, ValueError):
                others.append(each.name)
    return plain, others


def _text_or_views(views: str | Views) -> str | Views:
    """The text of views, if that is all there is to them."""
    if isinstance(views, str):
        return views
    check_views(views)
    text = text_of_views(views)
    return views if is_passed(text) else text


def _method_keys(method: Method) -> dict[str, Any]:
    """The keys of a registered method; none if keys cannot say all of it."""
    values = {each.name: getattr(method, each.name) for each in fields(method) if each.init}  # type: ignore[arg-type]
    best: dict[str, Any] = {}
    for name, (make, preset) in METHODS.items():
        options = method_options(make)
        if make is not type(method) or any(values[key] != value for key, value in preset.items()):
            continue
        described = {*preset, *options, "views", "criterion", "head"}
        rest = {each.name: each.default for each in fields(make) if each.name not in described}  # type: ignore[arg-type]
        if all(values.get(key, default) == default for key, default in rest.items()):
            best = {f"method.{option}": values[option] for option in options}
            best |= {"method.name": name, "method.head": method.head}
    return best
