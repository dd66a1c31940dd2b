"""A backbone with a projection head, from two views of each image to the contrastive loss; and its file."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sla.augment.preprocessing import Preprocessing
from sla.backbones import create_backbone
from sla.contrastive import contrast_logits
from sla.errors import InputError, MissingExtraError
from sla.model_file import SizeLimit, read_model_file, write_model_file
from sla.runs.distributed import Group
from sla.runs.preprocessing import read_preprocessing

FORMAT = 1


class SimCLRModel(nn.Module):
    """Features for other models to start from, and the head that is left behind.

    Args:
        backbone: images to features (B, D), or maps (B, D, H, W).
        head: features to embeddings, which are compared.
        temperature: of the loss.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module, temperature: float = 0.5) -> None:
        super().__init__()
        self.backbone, self.head, self.temperature = backbone, head, temperature
        self.group = Group()  # the processes whose images are contrasted with each other
        self.about: dict[str, Any] = {}  # how it is built again and what its images go through

    @property
    def preprocessing(self) -> Preprocessing:
        """What its images go through."""
        return read_preprocessing(self.about)

    def features(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D)."""
        found = self.backbone(images)
        return found.mean((2, 3)) if found.ndim == 4 else found

    def forward(self, views: Tensor) -> dict[str, Tensor]:
        """Two views of each image, interleaved, (2b, C, H, W) -> `loss`, and what it is the cross entropy of:

        `output` (2b, 2B), similarities with the views of all processes, and `target` (2b,). The last two are
        without gradient.
        """
        embeddings = self.head(self.features(views))
        everyone = self.group.gather(embeddings)
        first = self.group.rank * len(embeddings)
        output, target = contrast_logits(embeddings, self.temperature, everyone, first)
        return {"loss": F.cross_entropy(output, target), "output": output.detach(), "target": target}


def projection_head(width: int, layers: int, hidden: int, projection: int) -> nn.Sequential:
    """Linear layers with batch norm and ReLU between them: width, then `hidden` each, then `projection`."""
    parts: list[nn.Module] = []
    for _ in range(layers - 1):
        parts += [nn.Linear(width, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True)]
        width = hidden
    return nn.Sequential(*parts, nn.Linear(width, projection))


def build_model(about: dict[str, Any], pretrained: bool = False) -> SimCLRModel:
    """The model that `about` describes: backbone and its options, and its method."""
    options = dict(about["options"]) | ({"pretrained": True} if pretrained else {})
    backbone, method = create_backbone(about["backbone"], **options), about["method"]
    width: int = backbone.num_features  # type: ignore[assignment]
    head = projection_head(width, method["layers"], method["hidden"] or width, method["projection"])
    model = SimCLRModel(backbone, head, method["temperature"])
    model.about = about
    return model


def save_model(model: SimCLRModel, path: Path, **more: Any) -> None:
    """Write weights and description to one file; `model.weights` of other runs reads its backbone alone."""
    write_model_file(path, model.state_dict(), {"task": "simclr", "format": FORMAT, **model.about, **more})


def load_model(path: Path, device: str | torch.device = "cpu") -> SimCLRModel:
    """The model that `save_model` wrote, in eval mode. Nothing in the file can run code."""
    about, weights = read_model_file(path, "a SimCLR model that sla wrote")
    try:
        if about.pop("task", None) != "simclr":
            raise InputError(f"{path}: not a SimCLR model that sla wrote")
        if about["format"] != FORMAT:
            raise InputError(
                f"{path}: written in format {about['format']!r:.40}, this version reads {FORMAT}"
            )
        about["options"].pop("pretrained", None)  # a file must not have us download something
        with SizeLimit(weights):
            model = build_model(about)
        model.load_state_dict(weights)
    except (MissingExtraError, InputError):
        raise
    except Exception as error:  # whatever a damaged description leads to
        raise InputError(f"{path}: its description is damaged ({type(error).__name__})") from error
    return model.to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
