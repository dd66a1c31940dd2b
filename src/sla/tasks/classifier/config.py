"""The configuration of a classifier run: the keys that only this task has."""

import re
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_type_hints

from pydantic import Field, create_model, field_validator, model_validator

from sla.errors import InputError, nearest
from sla.imbalance import CRITERIA
from sla.methods import METHODS, method_options
from sla.methods.base import Method
from sla.methods.removed import drop_removed, refuse_removed
from sla.plugins import is_plugin_name
from sla.runs.config import (
    MOST_EPOCHS,
    MOST_MINUTES,
    LoopConfig,
    Part,
    SourceConfig,
    TrainingConfig,
    absolute_source,
)
from sla.views import view_names

DISTIL = "distil"  # the stage after training
DISTILLED = "distilled"  # the method of a run that distils another one
FEATURES = "features"  # the stage before training, and the method of a run that is nothing else
AVERAGED = "averaged"  # the checkpoint with the average of the quick and the trained model
AUTO = "auto"  # views or imbalance: chosen when the run starts


class EarlierData(Part):
    """Data of a run that another one grew from: a source, its folder of datasets, and the classes used."""

    source: str
    root: str | None = None
    classes: tuple[str | int, ...] | None = None


class DataConfig(SourceConfig):
    """Where the images come from and which of them are trained on."""

    classes: tuple[str | int, ...] | None = Field(
        None, description="only these classes, by name, number or range: 'cat, dog', 0-19; default: all"
    )
    earlier: tuple[EarlierData, ...] = Field(
        (), description="data whose classes come first, of a run by `sla grow`; filled in automatically"
    )

    hold_out: float = Field(0.1, ge=0, lt=1, description="fraction of train held out, unless there is a val")
    hold_out_seed: int = Field(0, ge=0, description="selects the held-out images, independently of run.seed")
    per_class: int | None = Field(None, ge=1, description="training images per class; default: all")
    long_tail: float | None = Field(
        None,
        gt=1,
        description="reduce train to a long tail with this ratio of the largest to the smallest class",
    )
    long_tail_max: int | None = Field(None, ge=1, description="images of the largest class in the tail")
    cache: bool = Field(
        False, description="keep resized images in the cache folder, so that they are decoded only once"
    )
    sampling: Literal["epochs", "random"] = Field("epochs", description="epochs, or a random batch per step")
    unlabelled: str | None = Field(
        None, description="more images, without labels, to train on: a folder, or the name of a dataset"
    )
    unlabelled_count: int | None = Field(
        None, ge=1, description="number of unlabelled images, drawn by run.seed; default: all"
    )

    @field_validator("unlabelled")
    @classmethod
    def _absolute(cls, source: str | None) -> str | None:
        return absolute_source(source)

    @field_validator("classes", mode="before")
    @classmethod
    def _listed(cls, classes: Any) -> Any:
        """`cat, dog` and `3` are lists too."""
        if isinstance(classes, str):
            return tuple(name.strip() for name in classes.split(",") if name.strip())
        return (classes,) if isinstance(classes, int) else classes


class MethodKeys(Part):
    """A registered method by its name, or your own."""

    name: str = Field(
        "sla",
        description=f"{', '.join(METHODS)}, or package.module:Class; from published weights baseline, unless "
        "views are asked for",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="options of your own method")
    criterion: str | None = Field(None, description="package.module:Name instead of cross entropy")
    views: str = Field("rot4", description=f"{', '.join(view_names())}, products such as rot4*rgb3, or auto")
    views_share: float = Field(
        0.2, gt=0, lt=1, description="fraction of a run spent on choosing views, if auto"
    )
    views_per_step: int | None = Field(
        None,
        ge=1,
        description="views of each image per step; default: 1, or all of a named method from scratch",
    )
    head: Literal["linear", "cosine"] | None = Field(None, description="linear, or cosine (ldam-drw)")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="label smoothing of class and joint labels")
    imbalance: str = Field("none", description=f"for rare classes: {', '.join((AUTO, *CRITERIA))}")
    deferred: float = Field(
        0.8, ge=0, le=1, description="fraction of the run after which the weights of ldam-drw apply"
    )

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_versions(cls, tree: Any) -> Any:
        return drop_removed(tree, cls.model_fields) if isinstance(tree, dict) else tree

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        refuse_removed(name)
        if name not in METHODS and not is_plugin_name(name):
            raise InputError(f"unknown method {name!r}{nearest(name, tuple(METHODS))}")
        return name

    @field_validator("imbalance")
    @classmethod
    def _declared(cls, name: str) -> str:
        if name not in (known := (AUTO, *CRITERIA)):
            raise InputError(f"unknown imbalance {name!r}{nearest(name, known)}")
        return name


def _option_fields() -> dict[str, Any]:
    """A key for each option that a method declares."""
    found = {}
    for kind, _ in METHODS.values():
        for name, each in method_options(kind).items():
            described = each.metadata
            found[name] = (
                get_type_hints(kind)[name],
                Field(each.default, description=described["description"], **described["limits"]),
            )
    return found


OPTION_FIELDS = _option_fields()
if TYPE_CHECKING:
    MethodConfig = MethodKeys
else:
    MethodConfig = create_model("MethodConfig", __base__=MethodKeys, **OPTION_FIELDS)


class RunConfig(LoopConfig):
    """Length, device and output of a classifier run."""

    batch_size: int | None = Field(None, ge=1, description="base images per step, over all processes")
    unlabelled_batch_size: int | None = Field(
        None, ge=1, description="unlabelled images per step, over all processes; default: as many as labelled"
    )
    epochs: float | None = Field(None, gt=0, le=MOST_EPOCHS, description="passes over the training images")
    flop: float | None = Field(
        None, gt=0, description="of training, without the quick model; converted to iterations at the start"
    )
    minutes: float | None = Field(
        None,
        gt=0,
        le=MOST_MINUTES,
        description="deadline of the whole run; steps that it leaves no time for are skipped",
    )
    pace: dict[str, str] | None = Field(
        None, description="which steps were skipped, by stage, with minutes; filled in automatically"
    )
    precision: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="float32, or mixed with bfloat16 or float16"
    )
    compile: bool | None = Field(
        None, description="torch.compile; default: where a long run's steps are measured to be faster"
    )
    compile_reason: str | None = Field(
        None, description="why it was compiled or not, with the times; filled in automatically"
    )


class DistilConfig(Part):
    """How a student learns the aggregated answer: as the last stage, or of another run, its teacher."""

    share: float | None = Field(
        None, gt=0, description="steps as a fraction of the teacher's; default: 0.25, 1 for a new backbone"
    )
    learning_rate: float | None = Field(
        None, gt=0, description="peak; default: half the teacher's, the teacher's for a new backbone"
    )
    teacher_views: int | None = Field(
        None, ge=1, description="random views per image and step that the teacher answers from; default: all"
    )
    cached: bool = Field(
        False, description="the teacher answers once for each image, unaugmented, instead of in every step"
    )
    mix: str | None = Field(
        None, description="mix the images that the student learns from, e.g. cutmix(1.0, 1.0); default: none"
    )
    checkpoint: Literal["last", "best", "averaged"] = Field(
        "last", description="of the teacher: last, best or averaged"
    )
    teacher: str | None = Field(None, description="run folder of the teacher, of a run by `sla distill`")
    teacher_checksum: str | None = Field(
        None, description="of the teacher's weights; filled in automatically"
    )
    unlabelled: str | None = Field(
        None, description="more images, without labels: a folder, or the name of a dataset"
    )

    @field_validator("teacher", "unlabelled")
    @classmethod
    def _absolute(cls, source: str | None) -> str | None:
        """A path that means the same from anywhere."""
        return absolute_source(source)

    def teacher_passes(self, teacher: Method, images: int, seen: int) -> int:
        """Forward passes for the answers to so many images, which the steps see so many times in all."""
        _, passes = teacher.teaching
        return images * passes if self.cached else seen * (self.teacher_views or passes)


class GrowConfig(Part):
    """How a run adds classes to another one."""

    run: str | None = Field(None, description="run folder that this one adds classes to, of `sla grow`")
    checkpoint: Literal["last", "best", "averaged"] = Field(
        "last", description="of that run: last, best or averaged"
    )
    checksum: str | None = Field(None, description="of that run's weights; filled in automatically")
    keep: int = Field(
        20, ge=0, description="training images kept of each old class, nearest to its mean; 0: none"
    )
    weight: float = Field(
        1.0, ge=0, description="weight of the distillation of the old model's answers; 0: fine-tuning"
    )
    temperature: float = Field(2.0, gt=0, description="temperature of that distillation")

    @field_validator("run")
    @classmethod
    def _absolute(cls, source: str | None) -> str | None:
        return absolute_source(source)


class ClassifierConfig(TrainingConfig):
    """The whole tree of a classifier run."""

    first_of_table: ClassVar[dict[str, str]] = {"method.name": "baseline"}
    task: Literal["classifier"] = Field("classifier", description="classifier, fewshot or simclr")
    data: DataConfig = DataConfig()
    method: MethodConfig = MethodConfig()
    run: RunConfig = RunConfig()
    mix: str | None = Field(None, description="mixing of images and labels: 'cutmix(1.0, 0.5)', 'mixup(1.0)'")
    strong_augment: str | None = Field(
        None,
        description="augmentation of unlabelled images if method.consistency_weight is above 0; default: "
        "augment, with randaugment and cutout",
    )
    stages: tuple[Literal["features", "train", "distil"], ...] | None = Field(
        None,
        description="train; before it features: a linear classifier on frozen features; after it distil: a "
        "student of the aggregated answer. Default: features, train from pretrained weights; else train",
    )
    distil: DistilConfig = DistilConfig()
    grow: GrowConfig = GrowConfig()

    @property
    def is_grown(self) -> bool:
        """Whether the run adds classes to another one."""
        return self.grow.run is not None

    @property
    def is_distilled(self) -> bool:
        """Whether the run itself distils another one."""
        return self.method.name == DISTILLED

    @property
    def is_features(self) -> bool:
        """Whether the run is the quick model and nothing else."""
        return self.method.name == FEATURES

    @field_validator("stages", mode="before")
    @classmethod
    def _listed(cls, stages: Any) -> Any:
        return tuple(re.findall(r"[^\s,]+", stages)) if isinstance(stages, str) else stages

    @field_validator("stages")
    @classmethod
    def _in_order(cls, stages: tuple[str, ...] | None) -> tuple[str, ...] | None:
        order = (FEATURES, "train", DISTIL)
        if stages is not None and stages != tuple(one for one in order if one in {*stages, "train"}):
            raise ValueError(f"'train', before it 'features', after it 'distil', not {', '.join(stages)!r}")
        return stages

    def has_stage(self, name: str) -> bool:
        """Whether a stage is among those of the run; one that is not planned yet has only `train`."""
        return name in (self.stages or ("train",))

    def chosen_at_start(self) -> tuple[str, ...]:
        """If no view is recognisable, `auto` trains the baseline, so the method is chosen with the views."""
        views = ("method.views", "method.name") if self.method.views == AUTO else ()
        return (*views, "method.imbalance") if self.method.imbalance == AUTO else views

    def earlier_run(self) -> str | None:
        """The run that it adds classes to, or its teacher's; else as any run."""
        return self.grow.run or self.distil.teacher or super().earlier_run()


def student_share(config: ClassifierConfig, fresh: bool = False) -> float:
    """Steps of a student, as a fraction of its teacher's; `fresh`: it has another backbone."""
    return config.distil.share or (1.0 if fresh else 0.25)


def student_steps(config: ClassifierConfig, fresh: bool = False) -> int:
    """Steps of a student."""
    return max(round(student_share(config, fresh) * (config.run.iterations or 0)), 1)
