"""The configuration of a classifier's run: the keys that only this task has."""

from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from pydantic import Field, create_model, field_validator

from sla.errors import InputError, nearest
from sla.methods import METHODS, method_options
from sla.plugins import is_plugin_name
from sla.runs.config import LoopConfig, Part, SourceConfig, TrainingConfig

AUTO = "auto"  # views or treatment of imbalance: chosen when the run starts


class DataConfig(SourceConfig):
    """Where the images come from and which of them are trained on."""

    hold_out: float = Field(0.1, ge=0, lt=1, description="share of train held out, unless there is a val")
    hold_out_seed: int = Field(0, ge=0, description="which images are held out: the same for every seed")
    per_class: int | None = Field(None, ge=1, description="train on this many images of each class")
    long_tail: float | None = Field(
        None, gt=1, description="cut train to a long tail: the first class has this many times the last"
    )
    long_tail_max: int | None = Field(None, ge=1, description="images of the tail's first class")
    cache: bool = Field(
        False, description="keep resized pictures in the cache folder: decoded once, not at every start"
    )
    sampling: Literal["epochs", "random"] = Field("epochs", description="or a fresh random batch each step")


class MethodKeys(Part):
    """What is learnt: the paper's methods by their names in its tables, or one of your own."""

    name: str = Field("sla+sd", description=f"{', '.join(METHODS)}, or package.module:Class")
    options: dict[str, Any] = Field(default_factory=dict, description="of a method of your own")
    criterion: str | None = Field(None, description="package.module:Name instead of cross entropy")
    views: str = Field("rot4", description="rot4, rot2, rgb3, rgb6, products such as rot4*rgb3, or auto")
    views_share: float = Field(0.2, gt=0, lt=1, description="of a run, spent on choosing views when auto")
    views_per_step: int | None = Field(None, ge=1, description="of each image in a step; all M at most")
    head: Literal["linear", "cosine"] | None = Field(None, description="linear; cosine with ldam-drw")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="of class and joint labels")
    imbalance: Literal["none", "auto", "cb", "ldam-drw", "focal", "logit-adjust"] = Field(
        "none", description="for rare classes: auto, cb, ldam-drw, focal, logit-adjust"
    )
    deferred: float = Field(
        0.8, ge=0, le=1, description="share of the run from which the weights of ldam-drw count"
    )

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in METHODS and not is_plugin_name(name):
            raise InputError(f"unknown method {name!r}{nearest(name, tuple(METHODS))}")
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


if TYPE_CHECKING:
    MethodConfig = MethodKeys
else:
    MethodConfig = create_model("MethodConfig", __base__=MethodKeys, **_option_fields())


class RunConfig(LoopConfig):
    """The same of a classifier's run."""

    batch_size: int | None = Field(None, ge=1, description="base images a step, over all processes")
    epochs: float | None = Field(None, gt=0, description="how long, in passes over the images")
    minutes: float | None = Field(None, gt=0, description="the rate is measured once, then iterations fixed")
    precision: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="float32, or mixed with bfloat16 or float16"
    )
    compile: bool | None = Field(None, description="by default where it pays for itself")


class ClassifierConfig(TrainingConfig):
    """The whole tree of a classifier's run."""

    task: Literal["classifier"] = Field("classifier", description="what is trained: classifier or fewshot")
    data: DataConfig = DataConfig()
    method: MethodConfig = MethodConfig()
    run: RunConfig = RunConfig()
    mix: str | None = Field(None, description="of images and labels: 'cutmix(1.0, 0.5)', 'mixup(1.0)'")

    def chosen_at_start(self) -> tuple[str, ...]:
        """Where no view is recognisable, `auto` ends in the baseline: the method is chosen with the views."""
        views = ("method.views", "method.name") if self.method.views == AUTO else ()
        return (*views, "method.imbalance") if self.method.imbalance == AUTO else views
