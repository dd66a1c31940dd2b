"""A user's script that uses every public name of sla, for `mypy --strict`; it is checked, never run."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import sla


class Mirror(sla.Views):
    """Views of one's own."""

    names = ("unchanged", "mirrored")

    def apply(self, input: Tensor, view: int) -> Tensor:
        return input.flip(-1) if view else input


@sla.register_method("mine")
@dataclass(frozen=True)
class Mine(sla.SLA):
    """A method of one's own."""

    def losses(
        self,
        heads: nn.ModuleDict,
        features: Tensor,
        target: Tensor | sla.MixedTarget,
        context: sla.StepContext = sla.StepContext(),  # noqa: B008
    ) -> dict[str, Tensor]:
        return super().losses(heads, features, target, context)


class Show(sla.Progress):
    def message(self, text: str) -> None:
        print(text)


def squared(logits: Tensor, target: Tensor | sla.MixedTarget) -> Tensor:
    assert isinstance(target, Tensor)
    return (logits.softmax(1) - nn.functional.one_hot(target, logits.shape[1])).square().mean()


def train(images: Tensor, labels: Tensor) -> sla.Run:
    data = sla.Objects(images, labels, test=(images, labels))
    sla.fit("digits", "runs/digits", method="sla", run__iterations=3)
    sla.fit(images, labels, out=Path("runs/few"), task="fewshot")
    method: sla.Method = Mine(Mirror(), distill=True)
    run = sla.fit(data, out="runs/own", backbone=nn.Flatten(), method=method, progress=Show())
    names: list[str] = run.predict(["a.png"]).names
    print(names, run.evaluate((images, labels)).targets, run.export("model.onnx"))
    opened = sla.open_run("runs/own", backbone=nn.Flatten(), data=data)
    assert isinstance(opened, sla.Run)
    return opened


def build(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    sla.allow("package.module:Name")
    kept: bool = sla.keep_memory()
    print(sla.__version__, sla.list_backbones(), sla.create_backbone("resnet8", in_channels=1))
    views: sla.Views = sla.Rotation() * sla.ColorPermutation("RGB", "GBR")
    views = sla.parse_views("rot4") if len(views) > 12 else sla.CustomViews(mirror=lambda x: x.flip(-1))
    criteria: list[nn.Module] = [sla.CrossEntropy(), sla.Focal(), sla.LDAM([3, 2]), sla.LogitAdjusted([3, 2])]
    methods: list[sla.Method] = [
        sla.Baseline(squared),
        sla.DataAugmentation(sla.Identity()),
        sla.MultiTask(views),
        sla.create_method("sla+sd", views, beta=0.5),
    ]
    model: sla.Classifier = sla.create("resnet8", 2, methods[-1])
    sla.follow_step(model, 0, 10)
    sla.init_from_data(model, images)
    context = sla.StepContext(unlabelled=sla.Unlabelled(images))
    losses: dict[str, Tensor] = model(images, labels, context)
    prediction: sla.Prediction = model.eval().predict(images)
    print(prediction.labels, prediction.probabilities, prediction.names, criteria, kept)
    model.anytime_rule = sla.AnytimeRule((0, 1), 0.5)
    sla.save(model, "model.safetensors", origin="here")
    again = sla.load("model.safetensors", backbone=nn.Flatten(), method=methods[0])
    return losses | {"logits": again.logits(images)}


def functions(images: Tensor, labels: Tensor) -> Tensor:
    views, weight = sla.Rotation(), sla.class_balanced_weights([3, 2])
    everything = sla.expand_views(images, views)
    some = sla.take_views(images, views, torch.zeros(len(images), 1, dtype=torch.long))
    joint, plain = sla.JointHead(8, 2, len(views)), sla.PlainHead(8, 2)
    features = torch.randn(len(everything), 8)
    logits, student = joint(features), plain(features[:: len(views)])
    loss = sla.sla_loss(logits, labels, len(views)) + sla.distillation_loss(logits, student, len(views))
    loss = loss + sla.nt_xent_loss(student, temperature=0.5)
    loss = loss + sla.data_augmentation_loss(plain(features), labels, len(views))
    loss = loss + sla.multi_task_loss(plain(features), torch.zeros(len(everything), 4), labels, len(views))
    consistent, confident = sla.consistency_loss(logits, student, len(views), 0.95)
    loss = loss + sla.marginal_view_loss(logits, len(views)) + consistent * confident
    loss = loss + sla.cross_entropy(student, labels, weight) + sla.focal_loss(student, labels)
    loss = loss + sla.ldam(student, labels, sla.ldam_margins([3, 2]))
    loss = loss + sla.logit_adjusted_loss(student, labels, torch.tensor([3.0, 2.0]))
    numbers, turned = sla.split_labels(sla.join_labels(labels, len(views)), len(views))
    average = sla.average_views(logits.unflatten(0, (-1, 4))[..., :2])
    print(some, numbers, turned, average, sla.aggregate_views(logits, 4), sla.select_view(logits, 0, 4))
    return loss


def errors() -> None:
    try:
        sla.create("resnet7", 2)
    except (sla.MissingExtraError, sla.InputError) as error:
        print(error)
    except sla.SLAError:
        raise
    except sla.SLAWarning:
        pass
