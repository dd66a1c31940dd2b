"""The configuration of a SimCLR run: the keys that only this task has."""

from typing import Literal

from pydantic import Field, field_validator

from sla.runs.config import (
    MOST_EPOCHS,
    MOST_MINUTES,
    LoopConfig,
    OptimizerConfig,
    Part,
    SourceConfig,
    TrainingConfig,
    absolute_source,
)


class SimCLRData(SourceConfig):
    """Where the images come from. Labels, where there are any, are for the scores alone."""

    source: str = Field("", description="a folder of pictures, with or without classes, a CSV, or a dataset")
    images: int | None = Field(None, ge=2, description="training images, chosen by run.seed; default: all")
    hold_out: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="fraction of labelled images held out to score on, unless there is a val",
    )
    hold_out_seed: int = Field(0, ge=0, description="selects the held-out images, independently of run.seed")
    labelled: str | None = Field(
        None, description="labelled images for the scores, which are not trained on: a folder or a dataset"
    )
    cache: bool = Field(
        False, description="keep resized images in the cache folder, so that they are decoded only once"
    )
    sampling: Literal["epochs", "random"] = Field(
        "random", description="a random batch per step, or epochs, whose batches may have an image twice"
    )

    @field_validator("labelled")
    @classmethod
    def _absolute(cls, source: str | None) -> str | None:
        """A path that means the same from anywhere."""
        return absolute_source(source)


class SimCLRMethod(Part):
    """The contrastive loss and the head that it is computed on."""

    temperature: float = Field(0.5, gt=0, description="of the contrastive loss, NT-Xent")
    layers: int = Field(2, ge=2, le=3, description="of the projection head, which other runs leave behind")
    hidden: int | None = Field(
        None, ge=1, description="width of its hidden layers; default: that of the features"
    )
    projection: int = Field(128, ge=2, description="width of the embeddings that are compared")


class SimCLROptimizer(OptimizerConfig):
    """As for a classifier, with the defaults of SimCLR on small pictures."""

    name: Literal["sgd", "adamw"] = Field("sgd", description="sgd or adamw")
    learning_rate: float | None = Field(
        None,
        gt=0,
        description="peak; default: batch_size / 512, of adamw / 512,000; a tenth from given weights",
    )
    nesterov: bool = Field(False, description="Nesterov momentum of sgd")
    weight_decay: float | None = Field(1e-4, ge=0, description="as torch's optimiser defines it")
    warmup: float = Field(0.05, ge=0, lt=1, description="fraction of the run in which the rate rises from 0")
    accumulate: int = Field(1, ge=1, le=1, description="1: a contrastive loss needs the whole batch at once")


class SimCLRRunConfig(LoopConfig):
    """Length, device and output."""

    batch_size: int | None = Field(
        None, ge=2, description="images per step, over all processes; two views of each go forward"
    )
    epochs: float | None = Field(None, gt=0, le=MOST_EPOCHS, description="passes over the training images")
    minutes: float | None = Field(
        None, gt=0, le=MOST_MINUTES, description="training time; converted to iterations at the start"
    )
    precision: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="float32, or mixed with bfloat16 or float16"
    )
    evaluations: int | None = Field(
        None, ge=1, description="number of scores on held-out images; default: 10, at most one per epoch"
    )


class SimCLRConfig(TrainingConfig):
    """The whole tree of a SimCLR run."""

    task: Literal["simclr"] = Field("simclr", description="classifier, fewshot or simclr")
    data: SimCLRData = SimCLRData()
    method: SimCLRMethod = SimCLRMethod()
    optimizer: SimCLROptimizer = SimCLROptimizer()
    run: SimCLRRunConfig = SimCLRRunConfig()
