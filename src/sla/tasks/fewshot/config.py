"""The configuration of a few-shot run: the keys that only this task has."""

from typing import Any, Literal

from pydantic import Field, field_validator

from sla.runs.config import (
    MOST_STEPS,
    LoopConfig,
    ModelConfig,
    OptimizerConfig,
    Part,
    SourceConfig,
    TrainingConfig,
)
from sla.tasks.fewshot.heads import HEADS, check_head
from sla.views import parse_views


class FewShotData(SourceConfig):
    """Where the images come from; train, val and test have different classes."""

    source: str = Field("", description="cifar-fs, fc100, mini-imagenet, or a folder or CSV of your own")
    workers: int = Field(0, ge=0, description="processes that decode images not held in memory")
    split_seed: int = Field(
        0, ge=0, description="selects the val and test classes if the data has no such split"
    )
    val_per_class: int | None = Field(
        None, ge=1, description="images per class used in validation; default: all"
    )


class FewShotModelConfig(ModelConfig):
    """The backbone, its initial weights, its input, and which features are used."""

    reading: Literal["pooled", "map", "unit"] = Field(
        "pooled", description="pooled features, the feature map before pooling, or unit-length features"
    )


class FewShotMethod(Part):
    """How episodes are solved, with plain or joint labels."""

    name: str = Field("ridge", description=", ".join(HEADS))
    options: dict[str, Any] = Field(
        default_factory=dict, description="options of the method: regularization, c, scale, ..."
    )
    views: str = Field(
        "rot4", description="none for the plain method; rot4, rgb3, rot4*rgb3, ... for joint labels"
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=0.5, description="spread over the other labels of an episode"
    )

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        check_head(name)
        return name

    @field_validator("views")
    @classmethod
    def _parsed(cls, views: str) -> str:
        parse_views(views)
        return views


class EpisodeConfig(Part):
    """The episodes of training, validation and test."""

    way: int = Field(5, ge=2, description="classes per episode")
    shot: int = Field(5, ge=1, description="support images per class, in training")
    query: int = Field(6, ge=1, description="query images per class, in training")
    per_step: int | None = Field(
        None, ge=1, le=4096, description="episodes per step; default: 8, or 4 on a CPU"
    )
    test_query: int = Field(15, ge=1, description="query images per class, in validation and test")
    val_shot: int | None = Field(
        None, ge=1, description="support images per class in validation; default: 5, or the shot if smaller"
    )
    val_episodes: int = Field(500, ge=1, description="episodes per validation")
    test_shots: tuple[int, ...] = Field((1, 5), min_length=1, description="shots to test")
    test_episodes: int = Field(1000, ge=2, description="test episodes, the same for every method and seed")


class FewShotOptimizer(OptimizerConfig):
    """As for a classifier, with the defaults of MetaOptNet."""

    learning_rate: float | None = Field(
        None, gt=0, description="peak learning rate; default: 0.1, or 0.01 from given weights"
    )
    weight_decay: float | None = Field(5e-4, ge=0, description="as torch's optimiser defines it")
    schedule: Literal["constant", "multistep", "cosine", "onecycle"] = Field(
        "multistep", description="constant, multistep, cosine or onecycle"
    )
    warmup: float = Field(0.0, ge=0, lt=1, description="fraction of the run in which the rate rises from 0")
    milestones: tuple[float, ...] = Field(
        (1 / 3, 2 / 3, 5 / 6), description="fractions of the run, for multistep"
    )
    factors: tuple[float, ...] | None = Field(
        (0.06, 0.012, 0.0024),
        description="learning rate factors after each milestone, instead of powers of gamma",
    )


class FewShotRunConfig(LoopConfig):
    """Length, device and output."""

    iterations: int = Field(2000, ge=1, le=MOST_STEPS, description="number of training steps")
    evaluations: int = Field(
        10, ge=1, description="number of validations, evenly spaced; the best checkpoint is kept"
    )


class FewShotConfig(TrainingConfig):
    """The whole tree of a few-shot run."""

    task: Literal["fewshot"] = Field("fewshot", description="classifier, fewshot or simclr")
    data: FewShotData = FewShotData()
    model: FewShotModelConfig = FewShotModelConfig()
    method: FewShotMethod = FewShotMethod()
    optimizer: FewShotOptimizer = FewShotOptimizer()
    run: FewShotRunConfig = FewShotRunConfig()
    episodes: EpisodeConfig = EpisodeConfig()
