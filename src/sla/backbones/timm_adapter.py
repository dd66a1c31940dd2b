"""Every model of timm as a backbone: `timm:<name>`, with timm's own options."""

from typing import Any

import torch
from torch import nn

from sla.backbones import ExpectedInput, Weights, register
from sla.backbones.torchvision_import import import_torchvision
from sla.errors import InputError, MissingExtraError, SLAError, nearest

_NOT_OPTIONS = {
    "num_classes": "a backbone has no classes, its head has",
    "features_only": "a backbone gives one pooled vector an image",
    "in_chans": "use in_channels",
    # timm's weights come from timm's own list: a file or address named here is opened by nobody.
    **dict.fromkeys(("checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay"), "use load_state_dict"),
}


def published(name: str) -> Weights | None:
    """What timm publishes for a model; None for nothing, or where timm is absent. timm downloads it."""
    try:
        cfg = _import_timm().get_pretrained_cfg(name.removeprefix("timm:"))
    except (MissingExtraError, RuntimeError):
        return None
    if cfg is None or not cfg.has_weights:
        return None
    return Weights(ExpectedInput(tuple(cfg.mean), tuple(cfg.std), cfg.input_size[-1]), available=False)


@register("timm:", weights=published)
def timm_backbone(name: str, *, in_channels: int = 3, pretrained: bool = False, **options: Any) -> nn.Module:
    """timm's model without its classifier; with `pretrained=True` timm downloads its published weights."""
    for option in _NOT_OPTIONS.keys() & options.keys():
        raise InputError(f"backbone {name!r} takes no option {option!r}: {_NOT_OPTIONS[option]}")
    timm = _import_timm()
    model_name = name.removeprefix("timm:")
    if not timm.is_model(model_name):
        # The list of all thousand names would hide the one line that says what was wrong.
        hint = nearest(model_name, timm.list_models())
        hint = hint if "did you mean" in hint else "; timm.list_models() has the names"
        raise InputError(f"timm has no model {model_name!r}{hint}")
    try:
        model: Any = timm.create_model(model_name, pretrained, num_classes=0, in_chans=in_channels, **options)
    except (TypeError, RuntimeError) as error:
        raise InputError(f"backbone {name!r}: {_first_line(error)}") from error
    except OSError as error:
        raise SLAError(f"the weights of {name!r} could not be downloaded: {_first_line(error)}") from error
    size = options.get("img_size", model.pretrained_cfg["input_size"][-1])
    height, width = (size, size) if isinstance(size, int) else size
    model.num_features = _measure_width(name, model, (in_channels, height, width))
    return model


def _measure_width(name: str, model: nn.Module, shape: tuple[int, ...]) -> int:
    # timm's own num_features is the map's width, which a few heads change; a few models do not pool at all.
    with torch.no_grad():
        output = model.eval()(torch.zeros(1, *shape))
    model.train()
    if output.ndim != 2 or output.shape[1] == 0:
        raise InputError(f"backbone {name!r} gives {tuple(output.shape)} for an image, not one vector")
    return int(output.shape[1])


def _import_timm() -> Any:
    import_torchvision()
    try:
        import timm
    except ModuleNotFoundError as error:
        if error.name != "timm":
            raise
        raise MissingExtraError("a backbone of timm", "timm") from None
    return timm


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
