"""Classifiers by name: `create` one from a backbone and a method, `save` it, `load` it."""

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sla.anytime import AnytimeRule
from sla.backbones import create_backbone
from sla.classifier import Classifier
from sla.errors import InputError, MissingExtraError, shown
from sla.heads import check_device
from sla.methods import METHODS, SLA, Method, find_method, takes_views
from sla.methods.removed import drop_removed
from sla.model_file import SizeLimit, read_model_file, write_model_file
from sla.plugins import import_plugin, is_passed, name_of, passed_name, passing
from sla.views import Views, check_views, parse_views

FORMAT = 1
DESCRIPTION: dict[str, type | tuple[type, ...]] = {  # the metadata of a saved file
    "backbone": str,
    "options": dict,
    "num_classes": int,
    "method": dict,
    "classes": (list, type(None)),
    "about": dict,
}


def create(
    backbone: str | nn.Module,
    num_classes: int,
    method: Method | None = None,
    *,
    check_input: bool = False,
    **options: Any,
) -> Classifier:
    """A classifier with a named backbone (`resnet32`, `efficientnet_lite0`, `timm:...`) or your own module.

    Args:
        backbone: a name, or a module that maps images to features (B, D) or to a map (B, D, H, W).
        num_classes: N, at least 2.
        method: SLA with rotation and self-distillation by default.
        check_input: check for NaN and infinite pixels before every forward pass.
        options: of the named backbone (`in_channels=1`, `pretrained=True`); of a module, `num_features` (D)
            if it has no such attribute.
    """
    method = SLA(distill=True) if method is None else method
    if isinstance(backbone, nn.Module):
        width = options.pop("num_features", None)
        if options:
            raise InputError(
                f"options {', '.join(options)} are for named backbones, not for a module of yours"
            )
        return Classifier(backbone, num_classes, method, num_features=width, check_input=check_input)
    if not isinstance(backbone, str):
        raise InputError(f"a backbone is a name or a module, not {backbone!r}")
    model = Classifier(create_backbone(backbone, **options), num_classes, method, check_input=check_input)
    # `load` rebuilds the backbone and takes its weights from the file, so pretrained ones are not needed.
    model.spec = {"backbone": backbone, "options": {k: v for k, v in options.items() if k != "pretrained"}}
    return model


def save(model: Classifier, path: str | Path, **about: Any) -> None:
    """Write a classifier to one safetensors file: weights, and how to rebuild it.

    `about` is stored with them, as JSON: preprocessing, origin, ... Of a backbone, method or views of your
    own only the weights are written: `load` takes such objects again.
    """
    for wrapped in ("_orig_mod", "module"):  # by torch.compile; by DistributedDataParallel
        model = getattr(model, wrapped, model)
    if not isinstance(model, Classifier):
        raise InputError(f"sla.save writes a Classifier, not {type(model).__name__}: sla.create(module, ...)")
    described = describe(model) | {"about": about}
    for name, value in about.items():
        if not _is_plain(value):
            raise InputError(f"sla.save: {name} must be what JSON can hold, not a {type(value).__name__}")
    if any(is_lazy(value) for value in (*model.parameters(), *model.buffers())):
        raise InputError("sla.save: a lazy layer has no weights yet: call the model with a batch first")
    # What a criterion learns is for training alone: checkpoints keep it in their state.
    tensors = {n: v for n, v in model.state_dict().items() if not n.startswith("criterion.")}
    write_model_file(Path(path), tensors, described)


def load(
    path: str | Path,
    device: str | torch.device = "cpu",
    *,
    backbone: nn.Module | None = None,
    method: Method | None = None,
    views: Views | None = None,
) -> Classifier:
    """The classifier that `save` wrote, in eval mode; `model.about` is what was stored with it.

    Loading a file never runs code from it.

    Args:
        path: the file.
        device: where the model goes.
        backbone: a module of yours in place of the one that the file describes; its weights become those of
            the file.
        method: a method of yours, likewise.
        views: views of yours, where the file says that they were passed from Python.
    """
    check_device(device)
    if not isinstance(backbone, nn.Module | None):
        raise InputError(f"backbone: a module to load the weights into, not {backbone!r}")
    if views is not None:
        check_views(views)
    described, weights = read_saved(path)
    with SizeLimit(weights):
        model = build(described, path, backbone=backbone, method=method, views=views)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        kind = described["backbone"]
        given = backbone is not None or is_passed(kind)
        what = "the backbone or method given" if given else f"the {kind} that it describes"
        raise InputError(f"{path}: its weights do not fit {what}: {_misfit(model, weights)}") from error
    return model.to(device).eval()


def describe(model: Classifier) -> dict[str, Any]:
    """How to build this classifier again, as plain data: what `save` writes beside the weights."""
    if model.class_names is not None and len(model.class_names) != model.num_classes:
        raise InputError(f"{len(model.class_names)} class names do not fit {model.num_classes} classes")
    module = {
        "backbone": passed_name("backbone", model.backbone),
        "options": {"num_features": model.num_features},
    }
    return {
        "format": FORMAT,
        **(model.spec or module),
        "num_classes": model.num_classes,
        "method": describe_method(model.method),
        "view_names": list(model.method.views.names),
        "classes": model.class_names,
        "about": model.about,
    } | ({} if model.anytime_rule is None else {"anytime": model.anytime_rule.to_dict()})


def build(
    described: dict[str, Any],
    where: str | Path,
    *,
    backbone: nn.Module | None = None,
    method: Method | None = None,
    views: Views | None = None,
) -> Classifier:
    """The classifier that `describe` described, with new weights; `load` explains the arguments."""
    try:
        if method is None:
            with passing(views=views):
                method = restore_method(described["method"])
        # `save` never writes `pretrained`: a file that has it could make us download something.
        options = {key: value for key, value in described["options"].items() if key != "pretrained"}
        if backbone is not None:
            options = {"num_features": options.get("num_features")}
        kind = described["backbone"] if backbone is None else backbone
        model = create(kind, described["num_classes"], method, **options)
        check_view_names(described, model.method.views)
        if "anytime" in described:
            model.anytime_rule = AnytimeRule.from_dict(described["anytime"])
    except MissingExtraError:
        raise
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except Exception as error:  # a damaged description can raise anything
        raise InputError(f"{where}: its description is damaged ({type(error).__name__})") from error
    model.class_names, model.about = described["classes"], described["about"]
    return model


def check_view_names(described: dict[str, Any], views: Views) -> None:
    """Raise an error unless the views are called as those that the described classifier was trained with."""
    known, given = described.get("view_names"), list(views.names)
    if known is not None and known != given:
        names = shown(", ".join(map(str, known)))
        raise InputError(f"the model was trained with the views {names}, not {', '.join(given)}")


def read_saved(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `save` wrote: the description and the weights."""
    described, weights = read_model_file(Path(path), "a classifier that sla.save() wrote")
    if described.get("format") != FORMAT:
        raise InputError(
            f"{path}: written in format {described.get('format')!r:.40}, this version reads {FORMAT}"
        )
    for key, kind in DESCRIPTION.items():
        if key not in described or not isinstance(described[key], kind):
            raise InputError(f"{path}: its description lacks a valid {key!r}")
    num_classes, names = described["num_classes"], described["classes"]
    # Checked before building anything of that size: each class has at least one row of weights.
    most = max((len(value) for value in weights.values() if value.ndim), default=0)
    if num_classes > most or (names is not None and len(names) != num_classes):
        raise InputError(f"{path}: its num_classes {num_classes} does not fit its weights and class names")
    return described, weights


def describe_method(method: Method) -> dict[str, Any]:
    """A method as plain data, without the criterion, which inference does not need."""
    if not is_dataclass(type(method)):
        return {"name": passed_name("method", method)}
    names = [
        name for name, declared in METHODS.items() if declared.make is type(method) and not declared.preset
    ]
    described: dict[str, Any] = {"name": names[0] if names else name_of(type(method))}
    for each in fields(method):  # type: ignore[arg-type]
        value = getattr(method, each.name)
        if each.name == "views":
            described["views"] = text_of_views(value) if each.init else value.text
        elif each.name != "criterion":
            described[each.name] = value
    if is_passed(described["name"]) or not _is_plain(described):
        return {"name": passed_name("method", method)}  # only Python has it
    return described


def restore_method(described: dict[str, Any]) -> Method:
    """The method that `describe_method` described; a class from outside sla must have been allowed."""
    if is_passed(described["name"]):
        return cast(Method, import_plugin(described["name"]))
    kind = find_method(described["name"]).make
    arguments = {key: value for key, value in described.items() if key not in ("name", "views")}
    if takes_views(described["name"]):
        arguments["views"] = parse_views(described["views"])
    return kind(**drop_removed(arguments, [each.name for each in fields(kind)]))  # type: ignore[arg-type]


def text_of_views(views: Views) -> str:
    """The text form of views if it can be parsed again, else a name for what only Python has."""
    try:
        same = is_passed(views.text) or parse_views(views.text) == views
    except InputError:
        same = False
    return views.text if same else passed_name("views", views)


def _misfit(model: Classifier, weights: dict[str, Tensor]) -> str:
    """The first tensor of a model that a file lacks or has in another shape; else one that only it has."""
    own = model.state_dict()
    for name, value in own.items():
        if name not in weights:
            return f"{name} {tuple(value.shape)} is not in the file"
        if weights[name].shape != value.shape:
            return f"{name} is {tuple(weights[name].shape)} in the file, not {tuple(value.shape)}"
    return f"the file also has {next((name for name in weights if name not in own), 'other tensors')}"


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
