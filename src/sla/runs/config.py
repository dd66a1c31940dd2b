"""The configuration of a run: one validated tree, with the branches and keys that all tasks share.

What is None is chosen by the plan and written back. The keys of a task are in `tasks/<name>/config.py`.
"""

import os
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from sla.disk import reason
from sla.errors import InputError, nearest, shown
from sla.images.decode import MAX_SIDE
from sla.trees import parse_yaml, read_text

MOST_STEPS = 10**8 - 1  # names of checkpoints have eight digits
MOST_EPOCHS = MOST_MINUTES = 1e6


class Part(BaseModel):
    """A branch of the tree: unknown keys are refused, values do not change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_as_number(cls, value: Any, about: ValidationInfo) -> Any:
        """`true` is not 1."""
        kind = cls.model_fields[about.field_name or ""].annotation
        kinds = get_args(kind) or (kind,)
        if isinstance(value, bool) and bool not in kinds and {int, float}.intersection(kinds):
            raise ValueError(f"must be a number, not {str(value).lower()}")
        return value


class SourceConfig(Part):
    """Where the images of any run come from."""

    source: str = Field("", description="a folder, a CSV, or the name of a dataset")
    root: str | None = Field(None, description="folder of the datasets, instead of the cache folder")
    stored_size: int | None = Field(
        None, ge=1, le=MAX_SIDE, description="size at which images are stored, before crops"
    )
    on_bad_image: Literal["refuse", "skip"] = Field("refuse", description="unreadable images: refuse or skip")
    workers: int | None = Field(None, ge=0, description="processes that decode images")


class ModelConfig(Part):
    """The backbone, its initial weights, and its input."""

    backbone: str | None = Field(None, description="resnet32, efficientnet_lite0, timm:NAME, ...")
    options: dict[str, Any] = Field(default_factory=dict, description="arguments of the backbone")
    weights: str | None = Field(None, description="none, pretrained, a file, a run folder, or own")
    resolution: int | None = Field(
        None, ge=1, le=MAX_SIDE, description="input size of the backbone, in pixels"
    )
    train_resolution: int | None = Field(
        None, ge=1, le=MAX_SIDE, description="input size in training, if another: smaller is cheaper"
    )
    mean: tuple[float, ...] | None = Field(None, description="per channel, of pixels in [0, 1]")
    std: tuple[float, ...] | None = Field(None, description="per channel, of pixels in [0, 1]")

    def input_shape(self, training: bool = False) -> tuple[int, int, int]:
        """(C, H, W) of an image as the backbone of a resolved configuration sees it."""
        size = (self.train_resolution if training else None) or self.resolution or 1
        return len(self.mean or ()), size, size


class OptimizerConfig(Part):
    """The optimiser and its schedule, which is stepped per iteration."""

    name: Literal["sgd", "adamw"] | None = Field(None, description="sgd or adamw")
    learning_rate: float | None = Field(None, gt=0, description="peak learning rate of the heads")
    momentum: float = Field(0.9, ge=0, lt=1, description="of sgd")
    nesterov: bool = Field(True, description="Nesterov momentum of sgd")
    weight_decay: float | None = Field(None, ge=0, description="as torch's optimiser defines it")
    decay_norms: bool = Field(True, description="apply weight decay to norm layers too")
    decay_biases: bool = Field(True, description="apply weight decay to biases of other layers too")
    schedule: Literal["constant", "multistep", "cosine", "onecycle"] = Field(
        "cosine", description="constant, multistep, cosine or onecycle"
    )
    milestones: tuple[float, ...] = Field((0.5, 0.75), description="fractions of the run, for multistep")
    gamma: float = Field(0.1, gt=0, le=1, description="factor at each milestone, unless factors are set")
    factors: tuple[float, ...] | None = Field(
        None, description="learning rate factors after each milestone, instead of powers of gamma"
    )
    cosine_length: float | None = Field(
        None,
        gt=0,
        description="fraction of the run in which the cosine falls to 0; default: all after the warm-up",
    )
    warmup: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="fraction of the run in which the rate rises from 0; default: 0.05, or 0.1 from given "
        "weights; 0 of onecycle from scratch",
    )
    warmup_stairs: int | None = Field(
        None, ge=1, description="warm up in this many equal steps, 1/n to 1, e.g. one per epoch"
    )
    backbone_factor: float | None = Field(None, gt=0, description="learning rate factor of the backbone")
    frozen: float = Field(0.0, ge=0, lt=1, description="fraction of the run that trains only the heads")
    fixed_norms: bool | None = Field(
        None,
        description="the backbone's batch norm keeps its statistics; default: from published weights",
    )
    clip: float | None = Field(None, gt=0, description="maximum norm of the gradient")
    accumulate: int = Field(1, ge=1, description="number of parts a batch is split into, to save memory")
    ema: float | None = Field(None, gt=0, lt=1, description="decay of the moving average of weights")

    @model_validator(mode="after")
    def _rising_milestones_with_their_factors(self) -> Self:
        count, factors = len(self.milestones), self.factors
        limits = (0.0, *self.milestones, 1.0)
        if any(one > other for one, other in pairwise(limits)) or len(set(self.milestones)) < count:
            given = ", ".join(f"{one:g}" for one in self.milestones)
            raise ValueError(f"milestones must be rising fractions of the run, from 0 to 1, not ({given})")
        if factors is not None and (len(factors) != count or min(factors, default=0) < 0):
            given = ", ".join(f"{factor:g}" for factor in factors)
            raise ValueError(
                f"factors must be one number from 0 for each of the {count} milestones, not ({given}); "
                "without them (null) they are powers of gamma"
            )
        return self


class LoopConfig(Part):
    """Length, device and output of a run."""

    seed: int = Field(0, ge=0, lt=2**63, description="random seed")
    iterations: int | None = Field(None, ge=1, le=MOST_STEPS, description="number of training steps")
    device: str | None = Field(None, description="cpu, cuda, mps, ...")
    threads: int | None = Field(
        None, ge=1, description="CPU threads per process, which rounding depends on; default: torch's choice"
    )
    channels_last: bool = Field(True, description="memory layout of images and weights")
    evaluations: int | None = Field(
        None, ge=1, description="number of evaluations on held-out images; default: 20, at most one per epoch"
    )
    checkpoint_every: int | None = Field(None, ge=1, description="iterations; default: about a minute")
    snapshots: int = Field(0, ge=0, description="keep the weights at this many evenly spaced iterations")
    tensorboard: bool = Field(False, description="also write the metrics for TensorBoard")


class TrainingConfig(Part):
    """The branches that every run has: task, data, model, method, augmentation, optimiser, run."""

    task: str
    data: SourceConfig = SourceConfig()
    model: ModelConfig = ModelConfig()
    method: Part = Part()
    augment: str | None = Field(None, description="label-preserving augmentation, e.g. 'crop(4), flip'")
    policies: dict[str, Any] = Field(
        default_factory=dict,
        description="content of the files of `policy(...)` in augment; filled in automatically",
    )
    optimizer: OptimizerConfig = OptimizerConfig()
    run: LoopConfig = LoopConfig()

    first_of_table: ClassVar[dict[str, str]] = {}  # values of recipes that `sla train` leaves out

    def chosen_at_start(self) -> tuple[str, ...]:
        """Keys whose value is chosen when the run starts; a resumed run has already chosen."""
        return ()

    def earlier_run(self) -> str | None:
        """The run whose weights this one starts from; or what else `model.weights` names."""
        return self.model.weights


Tree = TypeVar("Tree", bound=Part)
LONGEST = 40  # characters of a value that an error repeats
BUDGETS = ("run.iterations", "run.epochs", "run.flop", "run.minutes")
OTHER_NAMES = {  # what some keys are called elsewhere
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


def absolute_source(source: str | None) -> str | None:
    """A folder or file as a path that means the same from anywhere; the name of a dataset stays."""
    if source is None:
        return None
    if not source:
        raise ValueError("an empty text: the name of a folder or a dataset is needed")
    from sla.datasets.catalogue import CATALOGUE  # opening a run to predict does without

    path = Path(source).expanduser()  # os.path.exists: a name that no file can have is not there either
    return source if source in CATALOGUE or not os.path.exists(path) else str(path.absolute())


def task_name(tree: dict[str, Any]) -> Any:
    """The task of a tree; files of version 0.1 have no such key, but only few-shot runs have `episodes`."""
    return tree.get("task") or ("fewshot" if "episodes" in tree else "classifier")


class InvalidValueError(InputError):
    """A wrong value in a configuration: its key, and what is wrong with it."""

    key = reason = ""

    @classmethod
    def at(cls, where: str, key: str, reason: str) -> Self:
        """With both, and where the value was found."""
        error = cls(f"{where}: {key}: {reason}")
        error.key, error.reason = key, reason
        return error


def validate(kind: type[Tree], tree: dict[str, Any], where: str) -> Tree:
    """The tree as a configuration; a wrong key or value is named, with the nearest valid key."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = shown(".".join(str(part) for part in first["loc"]))
        if first["type"] == "extra_forbidden":
            raise InputError(f"{where}: unknown key {key!r}{suggest(key, keys(kind))}") from None
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] != "value_error":  # else our own message, which includes the value
            message += f", not {first.get('input')!r}"
        raise InvalidValueError.at(where, key, message) from None


def suggest(key: str, known: list[str]) -> str:
    """The key with another name, or in another branch, that was probably meant; else the nearest spelling."""
    name = key.rpartition(".")[2]
    alike = [other for other in known if other.rpartition(".")[2] == name]
    meant = OTHER_NAMES.get(name, alike[0] if len(alike) == 1 else "")
    return f", did you mean {meant!r}?" if meant in known else nearest(key, known)


def keys(part: type[BaseModel], prefix: str = "") -> list[str]:
    """Every key of the tree, as `--set` takes them: run.seed, method.views, ..."""
    found = []
    for name, field in part.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found += keys(field.annotation, f"{prefix}{name}.")
        else:
            found.append(prefix + name)
    return found


def set_keys(kind: type[Part], tree: dict[str, Any], assignments: dict[str, Any]) -> dict[str, Any]:
    """The tree with dotted keys set; missing branches are created."""
    result = {key: dict(value) if isinstance(value, dict) else value for key, value in tree.items()}
    budgets = [key for key in BUDGETS if key in keys(kind)]
    named = [key for key in budgets if assignments.get(key) is not None]
    if len(named) > 1:
        raise InputError(f"the length is given more than once: {' or '.join(named)}")
    if named:  # a budget given now replaces that of a file, and what was recorded of it
        replaced = (*budgets, *({"run.pace"} & set(keys(kind))))
        assignments = dict.fromkeys(replaced) | assignments
    for dotted, value in assignments.items():
        if dotted not in keys(kind):
            raise InputError(f"unknown key {dotted!r}{suggest(dotted, keys(kind))}")
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
        return key.strip(), parse_yaml(value)
    except ValueError as error:
        raise InputError(f"--set {key}: {value[:LONGEST]!r} is not a value: {error}") from None


def read_config(path: str | Path) -> dict[str, Any]:
    """The tree in a YAML file, not yet validated."""
    try:
        tree = parse_yaml(read_text(path))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: not a configuration: {reason(error)}") from None
    except ValueError as error:
        raise InputError(f"{path}: not a configuration: {error}") from None
    if not isinstance(tree, dict):
        raise InputError(f"{path}: not a configuration: it must be a tree of keys")
    return tree


def write_config(config: Part) -> str:
    """The configuration as YAML; `read_config` and `validate` give it back."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def differing_keys(a: Tree, b: Tree) -> list[str]:
    """`run.seed: 0 is not 1`, for every key in which the two differ; of a table, for every entry."""

    def value(config: Part, dotted: str) -> Any:
        for name in dotted.split("."):
            config = getattr(config, name)
        return config

    found = []
    for key in keys(type(a)):
        ours, theirs = value(a, key), value(b, key)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
            found += [f"{key}: {name} {ours.get(name)!r} is not {theirs.get(name)!r}" for name in names]
        elif ours != theirs:
            found.append(f"{key}: {ours!r} is not {theirs!r}")
    return found
