"""A few-shot model: backbone, head, views; from images of episodes to class logits; and its file."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sla.augment.preprocessing import Preprocessing
from sla.backbones import create_backbone
from sla.errors import InputError, MissingExtraError, nearest
from sla.inference import aggregate_views, select_view
from sla.labels import join_labels
from sla.model_file import KEY, SizeLimit, read_model_file, write_model_file
from sla.runs.preprocessing import read_preprocessing
from sla.tasks.fewshot.heads import create_head
from sla.tasks.fewshot.loss import smoothed_cross_entropy
from sla.views import Views, expand_views, parse_views

FORMAT = 1
FIRST_KEY = "sla-fewshot"  # of files that the first version wrote
READINGS = ("pooled", "map", "unit")


class FewShotModel(nn.Module):
    """Classes seen through M views are way*M classes: an N-way task becomes an NM-way one.

    Args:
        backbone: images to features (B, D); also `forward_features`, for reading="map".
        head: adapts to a support set and scores queries.
        views: whose index becomes part of the label; `Identity()` is the plain method.
        reading: "pooled" features as the backbone gives them, "unit" the same at length 1, or the "map"
            before pooling, flattened.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module, views: Views, reading: str = "pooled") -> None:
        super().__init__()
        if reading not in READINGS:
            raise InputError(f"features cannot be read as {reading!r}{nearest(reading, READINGS)}")
        self.backbone, self.head, self.views, self.reading = backbone, head, views, reading
        self.about: dict[str, Any] = {}  # how it is built again and what its images go through

    @property
    def inferences(self) -> tuple[str, ...]:
        """single (the plain image alone), aggregated (every view); the last is best."""
        return ("single", "aggregated") if len(self.views) > 1 else ("single",)

    @property
    def preprocessing(self) -> Preprocessing:
        """What its images go through."""
        return read_preprocessing(self.about)

    def features(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D)."""
        if self.reading == "map":
            return self.backbone.forward_features(images).flatten(1)  # type: ignore[operator]
        found = self.backbone(images)
        found = found.mean((2, 3)) if found.ndim == 4 else found
        return F.normalize(found, dim=1) if self.reading == "unit" else found

    def view_features(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, M, D): every view of every image."""
        return self.features(expand_views(images, self.views)).unflatten(0, (len(images), len(self.views)))

    def joint_logits(self, support: Tensor, targets: Tensor, query: Tensor, way: int) -> Tensor:
        """Features of all views, (E, S, M, D) and (E, Q, M, D), targets (E, S) -> (E, Q*M, way*M).

        Interleaved: image 0 view 0, image 0 view 1, ...; class y in view j is label y*M + j.
        """
        count = len(self.views)
        joint = join_labels(targets.flatten(), count).view(len(targets), -1)
        return self.head(support.flatten(1, 2), joint, query.flatten(1, 2), way * count)

    def class_logits(self, joint_logits: Tensor) -> dict[str, Tensor]:
        """(E, Q*M, way*M) -> (E, Q, way) by inference."""
        count, (episodes, rows, _) = len(self.views), joint_logits.shape
        shape = (episodes, rows // count)
        single = select_view(joint_logits.flatten(0, 1)[::count], 0, count).unflatten(0, shape)
        if count == 1:
            return {"single": single}
        aggregated = aggregate_views(joint_logits.flatten(0, 1), count).unflatten(0, shape)
        return {"single": single, "aggregated": aggregated}

    def losses(
        self, support: Tensor, targets: Tensor, query: Tensor, wanted: Tensor, way: int, smoothing: float = 0
    ) -> dict[str, Tensor]:
        """`loss` over all joint labels of all query views, and `output`, class logits (E*Q, way), detached.

        support is (E, S, C, H, W), query (E, Q, C, H, W); targets are (E, S), (E, Q), below way.
        """
        if support.shape[2:] != query.shape[2:]:
            sizes = " and ".join("x".join(map(str, part.shape[2:])) for part in (support, query))
            raise InputError(f"support and query images differ in size: {sizes}; resize them to one")
        count = len(self.views)
        # Apart, because batch norm mixes what goes forward together: queries must not see the support set.
        seen = self.view_features(support.flatten(0, 1)).unflatten(0, support.shape[:2])
        asked = self.view_features(query.flatten(0, 1)).unflatten(0, query.shape[:2])
        joint = self.joint_logits(seen, targets, asked, way)
        labels = join_labels(wanted.flatten(), count).view(joint.shape[:2])
        with torch.no_grad():
            output = self.class_logits(joint)[self.inferences[-1]].flatten(0, 1)
        return {"loss": smoothed_cross_entropy(joint, labels, smoothing), "output": output}


def build_model(about: dict[str, Any], pretrained: bool = False) -> FewShotModel:
    """The model that `about` describes: backbone and its options, head and its options, views, reading."""
    options = dict(about["backbone_options"]) | ({"pretrained": True} if pretrained else {})
    backbone = create_backbone(about["backbone"], **options)
    head = create_head(about["head"], **about["head_options"])
    model = FewShotModel(backbone, head, parse_views(about["views"]), about["reading"])
    model.about = about
    return model


def save_model(model: FewShotModel, path: Path, **more: Any) -> None:
    """Write weights and description to one file."""
    described = {"task": "fewshot", "format": FORMAT, **model.about, **more}
    write_model_file(path, model.state_dict(), described)


def load_model(path: Path, device: str | torch.device = "cpu") -> FewShotModel:
    """The model that `save_model` wrote, in eval mode. Nothing in the file can run code."""
    about, weights = read_model_file(path, "a few-shot model that sla wrote", FIRST_KEY, KEY)
    try:
        if about.pop("task", "fewshot") != "fewshot" or "head" not in about:
            raise InputError(f"{path}: not a few-shot model that sla wrote")
        if about["format"] != FORMAT:
            raise InputError(
                f"{path}: written in format {about['format']!r:.40}, this version reads {FORMAT}"
            )
        about["backbone_options"].pop("pretrained", None)  # a file must not have us download something
        with SizeLimit(weights):
            model = build_model(about)
        model.load_state_dict(weights)
    except (MissingExtraError, InputError):
        raise
    except Exception as error:  # whatever a damaged description leads to
        raise InputError(f"{path}: its description is damaged ({type(error).__name__})") from error
    return model.to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
