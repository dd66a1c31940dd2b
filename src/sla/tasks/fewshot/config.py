"""The configuration of a few-shot run: the keys that only this task has."""

from typing import Any, Literal

from pydantic import Field, field_validator

from sla.runs.config import LoopConfig, ModelConfig, OptimizerConfig, Part, SourceConfig, TrainingConfig
from sla.tasks.fewshot.heads import check_head
from sla.views import parse_views


class FewShotData(SourceConfig):
    """Where the images come from; train, val and test have classes of their own."""

    source: str = Field("", description="cifar-fs, fc100, mini-imagenet, or a folder or CSV of your own")
    workers: int = Field(0, ge=0, description="processes that decode pictures not held in memory")
    split_seed: int = Field(0, ge=0, description="which classes are for val and test, where nothing says so")
    val_per_class: int | None = Field(None, ge=1, description="images of each class used in validation")


class FewShotModelConfig(ModelConfig):
    """The backbone, its first weights, what it sees, and how its features are read."""

    reading: Literal["pooled", "map", "unit"] = Field(
        "pooled", description="features as the backbone gives them, the map before pooling, or length 1"
    )


class FewShotMethod(Part):
    """What is learnt: to solve episodes, of plain or of joint labels."""

    name: str = Field("ridge", description="protonet, ridge, r2d2 or svm")
    options: dict[str, Any] = Field(
        default_factory=dict, description="of the method: regularization, c, scale, ..."
    )
    views: str = Field(
        "rot4", description="none for the plain method; rot4, rgb3, rot4*rgb3, ... for joint labels"
    )
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="shared by the other labels of an episode")

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
    """The tasks that are trained on, and those of validation and test."""

    way: int = Field(5, ge=2, description="classes of an episode")
    shot: int = Field(5, ge=1, description="support images of each class, in training")
    query: int = Field(6, ge=1, description="query images of each class, in training")
    per_step: int | None = Field(None, ge=1, le=4096, description="episodes of a step; 8, on a CPU 4")
    test_query: int = Field(15, ge=1, description="query images of each class, in validation and test")
    val_shot: int | None = Field(
        None, ge=1, description="support images in validation; 5, or the shot if smaller"
    )
    val_episodes: int = Field(500, ge=1, description="of each validation")
    test_shots: tuple[int, ...] = Field((1, 5), min_length=1, description="shots that are tested")
    test_episodes: int = Field(1000, ge=2, description="the same for every method and seed")


class FewShotOptimizer(OptimizerConfig):
    """As of a classifier, with the defaults of MetaOptNet."""

    learning_rate: float | None = Field(None, gt=0, description="0.1; 0.01 from given weights")
    weight_decay: float | None = Field(5e-4, ge=0, description="as the optimiser means it")
    schedule: Literal["constant", "multistep", "cosine", "onecycle"] = Field(
        "multistep", description="or constant, cosine, onecycle"
    )
    milestones: tuple[float, ...] = Field(
        (1 / 3, 2 / 3, 5 / 6), description="shares of the run, for multistep"
    )
    factors: tuple[float, ...] | None = Field(
        (0.06, 0.012, 0.0024), description="of the rate from each milestone on, instead of powers of gamma"
    )


class FewShotRunConfig(LoopConfig):
    """How long, on what, and what is written."""

    iterations: int = Field(2000, ge=1, description="how long, in steps")
    evaluations: int = Field(10, ge=1, description="validations, evenly spaced; the best checkpoint is kept")


class FewShotConfig(TrainingConfig):
    """The whole tree of a few-shot run."""

    task: Literal["fewshot"] = Field("fewshot", description="what is trained: classifier or fewshot")
    data: FewShotData = FewShotData()
    model: FewShotModelConfig = FewShotModelConfig()
    method: FewShotMethod = FewShotMethod()
    optimizer: FewShotOptimizer = FewShotOptimizer()
    run: FewShotRunConfig = FewShotRunConfig()
    episodes: EpisodeConfig = EpisodeConfig()
