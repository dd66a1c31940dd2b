"""The configuration of a run: one validated tree. What is None is chosen by `plan` and written back."""

from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sla.errors import InputError, nearest


class Part(BaseModel):
    """A branch of the tree: unknown keys are refused, values do not change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SourceConfig(Part):
    """Where the images of any run come from."""

    source: str = Field("", description="a folder, a CSV, or a known dataset's name")
    root: str | None = Field(None, description="where known datasets lie, instead of the cache folder")
    stored_size: int | None = Field(None, ge=1, description="pictures are kept at this size before crops")
    on_bad_image: Literal["refuse", "skip"] = Field("refuse", description="or skip, with a note")
    workers: int | None = Field(None, ge=0, description="processes that decode pictures")


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


class ModelConfig(Part):
    """The backbone, its first weights, and what it sees."""

    backbone: str | None = Field(None, description="resnet32, efficientnet_lite0, timm:NAME, ...")
    options: dict[str, Any] = Field(default_factory=dict, description="for the backbone")
    weights: str | None = Field(None, description="none, pretrained, a file, or a run's folder")
    resolution: int | None = Field(None, ge=1, description="pixels a side of what the backbone sees")
    mean: tuple[float, ...] | None = Field(None, description="by channel, of pixels in [0, 1]")
    std: tuple[float, ...] | None = Field(None, description="by channel, of pixels in [0, 1]")


class MethodConfig(Part):
    """What is learnt: the paper's methods by their names in its tables."""

    name: Literal["baseline", "da", "mt", "sla", "sla+sd"] = Field(
        "sla+sd", description="or baseline, da, mt, sla"
    )
    views: str = Field("rot4", description="rot4, rot2, rgb3, rgb6, products such as rot4*rgb3, or auto")
    views_share: float = Field(0.2, gt=0, lt=1, description="of a run, spent on choosing views when auto")
    views_per_step: int | None = Field(None, ge=1, description="of each image in a step; all M at most")
    beta: float = Field(1.0, ge=0, description="weight of the student's own cross entropy")
    temperature: float = Field(1.0, gt=0, description="of the distillation")
    view_reduction: Literal["mean", "sum"] = Field("mean", description="of the joint loss over views")
    head: Literal["linear", "cosine"] | None = Field(None, description="linear; cosine with ldam-drw")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="of class and joint labels")
    imbalance: Literal["none", "auto", "cb", "ldam-drw", "focal", "logit-adjust"] = Field(
        "none", description="for rare classes: auto, cb, ldam-drw, focal, logit-adjust"
    )
    deferred: float = Field(
        0.8, ge=0, le=1, description="share of the run from which the weights of ldam-drw count"
    )


class OptimizerConfig(Part):
    """How it is learnt. Every schedule is stepped per iteration."""

    name: Literal["sgd", "adamw"] | None = Field(None, description="sgd or adamw")
    learning_rate: float | None = Field(None, gt=0, description="of the heads, at its highest")
    momentum: float = Field(0.9, ge=0, lt=1, description="for sgd")
    nesterov: bool = Field(True, description="for sgd")
    weight_decay: float | None = Field(None, ge=0, description="as the optimiser means it")
    decay_norms: bool = Field(True, description="weight decay on norm layers too")
    decay_biases: bool = Field(True, description="weight decay on the biases of other layers too")
    schedule: Literal["constant", "multistep", "cosine", "onecycle"] = Field(
        "cosine", description="or constant, multistep, onecycle"
    )
    milestones: tuple[float, ...] = Field((0.5, 0.75), description="shares of the run, for multistep")
    gamma: float = Field(0.1, gt=0, le=1, description="factor at each milestone, where factors are none")
    factors: tuple[float, ...] | None = Field(
        None, description="of the rate from each milestone on, instead of powers of gamma"
    )
    cosine_length: float | None = Field(
        None,
        gt=0,
        description="share of the run in which the cosine falls to 0; by default what warm-up leaves",
    )
    warmup: float = Field(0.0, ge=0, lt=1, description="share of the run in which the rate rises from 0")
    warmup_stairs: int | None = Field(
        None, ge=1, description="warm up in so many equal stairs, 1/n to 1, as one an epoch"
    )
    backbone_factor: float | None = Field(None, gt=0, description="of the learning rate, for the backbone")
    frozen: float = Field(0.0, ge=0, lt=1, description="share of the run in which only heads learn")
    clip: float | None = Field(None, gt=0, description="the largest norm of the gradient")
    accumulate: int = Field(1, ge=1, description="parts in which a batch goes through the model")
    ema: float | None = Field(None, gt=0, lt=1, description="decay of the moving average of weights")

    @model_validator(mode="after")
    def _one_factor_for_each_milestone(self) -> Self:
        count, factors = len(self.milestones), self.factors
        if factors is not None and (len(factors) != count or min(factors, default=0) < 0):
            given = ", ".join(f"{factor:g}" for factor in factors)
            raise ValueError(
                f"factors must be one number from 0 for each of the {count} milestones, not ({given}); "
                "without them (null) they are powers of gamma"
            )
        return self


class LoopConfig(Part):
    """How long, on what, and what is written, of any run."""

    seed: int = Field(0, ge=0, lt=2**63, description="everything random follows from it")
    iterations: int | None = Field(None, ge=1, description="how long, in steps")
    device: str | None = Field(None, description="cpu, cuda, mps, ...")
    channels_last: bool = Field(True, description="memory layout of images and weights")
    evaluations: int | None = Field(
        None, ge=1, description="of the held-out images; 20, once an epoch at most"
    )
    checkpoint_every: int | None = Field(None, ge=1, description="iterations; by default about a minute")
    snapshots: int = Field(0, ge=0, description="weights kept at this many evenly spaced iterations")
    tensorboard: bool = Field(False, description="write the metrics for TensorBoard too")


class RunConfig(LoopConfig):
    """The same of a classifier's run."""

    batch_size: int | None = Field(None, ge=1, description="base images a step, over all processes")
    epochs: float | None = Field(None, gt=0, description="how long, in passes over the images")
    minutes: float | None = Field(None, gt=0, description="the rate is measured once, then iterations fixed")
    precision: Literal["float32", "bfloat16", "float16"] | None = Field(
        None, description="float32, or mixed with bfloat16 or float16"
    )
    compile: bool | None = Field(None, description="by default where it pays for itself")


class TrainingConfig(Part):
    """What every kind of run says: its images, its network, its method, how it learns."""

    data: SourceConfig = SourceConfig()
    model: ModelConfig = ModelConfig()
    method: Part = Part()
    augment: str | None = Field(None, description="label-keeping augmentation, as in 'crop(4), flip'")
    policies: dict[str, Any] = Field(
        default_factory=dict, description="what the files of `policy(...)` in augment held; filled in"
    )
    optimizer: OptimizerConfig = OptimizerConfig()
    run: LoopConfig = LoopConfig()


class Config(TrainingConfig):
    """The whole tree of a classifier's run."""

    data: DataConfig = DataConfig()
    method: MethodConfig = MethodConfig()
    run: RunConfig = RunConfig()
    mix: str | None = Field(None, description="of images and labels: 'cutmix(1.0, 0.5)', 'mixup(1.0)'")


Tree = TypeVar("Tree", bound=Part)
BUDGETS = ("run.iterations", "run.epochs", "run.minutes")
OTHER_NAMES = {  # what elsewhere some keys are called
    "lr": "optimizer.learning_rate",
    "wd": "optimizer.weight_decay",
    "bs": "run.batch_size",
    "batch": "run.batch_size",
    "steps": "run.iterations",
    "max_steps": "run.iterations",
    "gpu": "run.device",
    "amp": "run.precision",
    "arch": "model.backbone",
    "model": "model.backbone",
    "pretrained": "model.weights",
    "image_size": "model.resolution",
    "dataset": "data.source",
    "num_workers": "data.workers",
}


def make_config(tree: dict[str, Any], where: str = "configuration") -> Config:
    """Validate a tree of plain values; a wrong key or value is named, with the nearest valid key."""
    return validate(Config, tree, where)


def validate(kind: type[Tree], tree: dict[str, Any], where: str) -> Tree:
    """As `make_config`, for any kind of tree."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise InputError(f"{where}: unknown key {key!r}{_suggest(key, keys(kind))}") from None
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "value_error":  # a sentence of our own, which has the value in it
            raise InputError(f"{where}: {key}: {message}") from None
        raise InputError(f"{where}: {key}: {message}, not {first.get('input')!r}") from None


def _suggest(key: str, known: list[str]) -> str:
    """The key that is meant by another name, or in another branch; else the nearest by its letters."""
    name = key.rpartition(".")[2]
    alike = [other for other in known if other.rpartition(".")[2] == name]
    meant = OTHER_NAMES.get(name, alike[0] if len(alike) == 1 else "")
    return f", did you mean {meant!r}?" if meant in known else nearest(key, known)


def keys(part: type[BaseModel] = Config, prefix: str = "") -> list[str]:
    """Every key of the tree, as `--set` takes them: run.seed, method.views, ..."""
    found = []
    for name, field in part.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found += keys(field.annotation, f"{prefix}{name}.")
        else:
            found.append(prefix + name)
    return found


def describe_keys(part: type[BaseModel] = Config, prefix: str = "") -> list[tuple[str, str, str]]:
    """(key, default, meaning) of every key, for documents; no default: chosen by the plan, or not used."""
    rows = []
    for name, field in part.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            rows += describe_keys(field.annotation, f"{prefix}{name}.")
            continue
        default = field.get_default(call_default_factory=True)
        shown = "" if default is None else yaml.safe_dump(default, default_flow_style=True).split("\n")[0]
        rows.append((prefix + name, shown, field.description or ""))
    return rows


def with_values(
    tree: dict[str, Any], assignments: dict[str, Any], kind: type[Part] = Config
) -> dict[str, Any]:
    """The tree with dotted keys set; parts that were not there are made."""
    result = {key: dict(value) if isinstance(value, dict) else value for key, value in tree.items()}
    budgets = [key for key in BUDGETS if key in keys(kind)]
    named = [key for key in budgets if assignments.get(key) is not None]
    if len(named) > 1:
        raise InputError(f"say how long once: {' or '.join(named)}")
    if named:  # what is said now comes before what a file says
        assignments = dict.fromkeys(budgets) | assignments
    for dotted, value in assignments.items():
        if dotted not in keys(kind):
            raise InputError(f"unknown key {dotted!r}{_suggest(dotted, keys(kind))}")
        part, _, name = dotted.rpartition(".")
        if part and result.get(part) is None:
            result[part] = {}  # absent, or an empty line in a file
        if part and not isinstance(result[part], dict):
            raise InputError(f"{part} must be a branch with keys of its own, not {result[part]!r}")
        (result[part] if part else result)[name] = value
    return result


def parse_assignment(text: str) -> tuple[str, Any]:
    """`run.seed=3` -> ("run.seed", 3); the value is read as YAML."""
    key, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set takes key=value, not {text!r}")
    try:
        return key.strip(), yaml.safe_load(value)
    except yaml.YAMLError:
        raise InputError(f"--set {key}: {value!r} is not a value") from None


def read_config(path: str | Path) -> dict[str, Any]:
    """The tree in a YAML file, not yet validated."""
    try:
        tree = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: not a configuration: {reason}") from None
    if not isinstance(tree, dict):
        raise InputError(f"{path}: not a configuration: it must be a tree of keys")
    return tree


def write_config(config: Part) -> str:
    """The configuration as YAML; `read_config` and `make_config` give it back."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def differing_keys(a: Tree, b: Tree) -> list[str]:
    """`run.seed: 0 is not 1`, for every key in which the two differ."""

    def value(config: Part, dotted: str) -> Any:
        for name in dotted.split("."):
            config = getattr(config, name)
        return config

    pairs = ((key, value(a, key), value(b, key)) for key in keys(type(a)))
    return [f"{key}: {ours!r} is not {theirs!r}" for key, ours, theirs in pairs if ours != theirs]
