"""Defaults of a classifier's model: backbone, weights, resolution, and the method that suits them."""

from sla.backbones import PRETRAINED
from sla.datasets.catalogue import CATALOGUE
from sla.datasets.objects import Objects
from sla.images.store import Dataset, Splits, spread
from sla.progress import QUIET, Progress
from sla.runs.defaults import TINY, fill_missing, has_pretrained, native_size, override, small_backbone
from sla.runs.preprocessing import enlarged
from sla.runs.weights import describe_start, origin_resolution
from sla.tasks.classifier.config import DISTIL, DISTILLED, FEATURES, ClassifierConfig
from sla.tasks.classifier.features import own_resolution
from sla.tasks.classifier.split import load_data

QUICK_ALONE = (FEATURES, DISTILLED)  # methods without the quick model before them
SMALLEST, FEW = 24, 5_000  # pixels from which, and images up to which, small pictures suit published weights
SAMPLE = 64  # pictures that say whether all are grey
QUICK_MINUTES = 1.0  # up to which a run from pretrained weights is the quick model alone


def choose_model(
    config: ClassifierConfig,
    splits: Splits | Objects | None,
    reasons: list[str],
    progress: Progress = QUIET,
) -> tuple[ClassifierConfig, Splits | Objects | None]:
    """The configuration with a model that fits the pictures, and these where they had to be read for that."""
    if isinstance(splits, Objects):
        grey, native = splits.channels == 1, splits.native
    elif splits is not None:
        grey, native = splits.train.images.shape[0] == 1, max(splits.train.images.shape[1:])
        config = fill_missing(config, "data", stored_size=native)
    elif config.data.earlier:  # with everything as in the run before
        grey, native = False, config.data.stored_size or 1
    else:
        grey, native = _native(config)
        if native <= TINY:  # stored as they are; how many there are matters
            config = fill_missing(config, "data", stored_size=native)
            splits = load_data(config.data, progress=progress)
            grey = _is_grey(splits.train)
    images = _count_images(config, splits)
    config = _model_for(config, native, grey, images, [] if config.is_grown else reasons)
    return config, splits


def _native(config: ClassifierConfig) -> tuple[bool, int]:
    """Whether pictures are grey, and their pixels a side."""
    known = CATALOGUE.get(config.data.source)
    return known is not None and known.shape[0] == 1, native_size(config.data.source)


def _is_grey(images: Dataset) -> bool:
    """Whether pictures have no colour, by a sample: files of grey ones are read as colour."""
    if images.images.shape[0] == 1:
        return True
    seen = images.read(spread(len(images), SAMPLE)).images
    return bool((seen == seen[:, :1]).all())


def _count_images(config: ClassifierConfig, splits: Splits | Objects | None) -> int | None:
    """Training images, where they are at hand; a limit per class counts."""
    if splits is None:
        return None
    if isinstance(splits, Objects):
        return len(splits.parts["train"])
    images, per_class = len(splits.train), config.data.per_class
    return images if per_class is None else min(images, per_class * splits.train.num_classes)


def _suits_small_network(config: ClassifierConfig, native: int, grey: bool, images: int | None) -> bool:
    """Whether pictures are for a CIFAR network from scratch: small ones, unless published weights do better.

    A few small pictures in colour are classified far better by such weights, enlarged to what these expect
    (docs/photographs.md), at many times the cost of a pass.
    """
    model = config.model
    if native > TINY or model.weights == "pretrained":
        return False
    if grey or model.backbone or model.weights or not has_pretrained():
        return True
    return native < SMALLEST or images is None or images > FEW


def _model_for(
    config: ClassifierConfig, native: int, grey: bool, images: int | None, reasons: list[str]
) -> ClassifierConfig:
    """Backbone, weights, resolution, and the size at which pictures are stored."""
    slow = config.run.device == "cpu"
    why = "" if config.model.backbone else _kind_of_pictures(native)  # no reason for the person's own choice
    if _suits_small_network(config, native, grey, images):
        config = fill_missing(
            config, "model", backbone=small_backbone(slow), weights="none", resolution=native
        )
        config = fill_missing(config, "data", stored_size=native)
        start = describe_start(config)
        if config.is_distilled:
            start = "from its teacher's weights if the backbone is the same"
        reasons.append(f"{why}{config.model.backbone}, {start}, at {config.model.resolution} pixels")
        config = _choose_method(config)
        # Grey tiny pictures are mostly characters: a mirrored one is another.
        chosen = f"crop({max(native // 8, 1)})" + ("" if grey else ", flip")
        return config.model_copy(update={"augment": config.augment or chosen})
    pretrained = has_pretrained() and not grey
    chosen = config.model.backbone or (PRETRAINED if pretrained else "resnet18")
    has_weights = has_pretrained(chosen) and not grey
    resolution = min(128 if slow else 224, max(96, native // 32 * 32))
    config = fill_missing(config, "model", backbone=chosen, weights="pretrained" if has_weights else "none")
    resolution = origin_resolution(config) or own_resolution(config) or resolution
    config = _choose_method(_choose_stages(config, reasons))
    own = own_resolution(config) or resolution
    if config.has_stage(FEATURES):
        reasons.append(
            f"first the quick model, on frozen features at {own} pixels; then training from its head"
        )
    config = fill_missing(config, "model", resolution=own if config.is_features else resolution)
    seen = max(config.model.resolution or 0, own if config.has_stage(FEATURES) else 0)
    config = fill_missing(config, "data", stored_size=min(native, enlarged(seen)))
    reasons.append(
        f"{why}{config.model.backbone} {describe_start(config)}, at {config.model.resolution} pixels"
    )
    smallest = 0.35 if config.model.weights != "none" else 0.2
    return config.model_copy(update={"augment": config.augment or f"resized({smallest}), flip"})


def _kind_of_pictures(native: int) -> str:
    return f"pictures of {native} pixels: " if native <= TINY else "photographs: "


def _choose_stages(config: ClassifierConfig, reasons: list[str]) -> ClassifierConfig:
    """From pretrained weights the quick model comes first; in a minute there is time for nothing else."""
    if config.stages is not None or config.model.weights != "pretrained" or config.method.name in QUICK_ALONE:
        return config
    asked = "name" in config.method.model_fields_set or _asks_for_views(config)
    if not asked and config.run.minutes is not None and config.run.minutes <= QUICK_MINUTES:
        reasons.append("up to a minute: the quick model alone, without training")
        return override(config, "method", name=FEATURES)
    return config.model_copy(update={"stages": (FEATURES, "train")})


def _choose_method(config: ClassifierConfig) -> ClassifierConfig:
    """SLA with one view per step, better at the same cost (`sla reproduce views`), or what is named.

    From published weights plain labels, which were as good (docs/photographs.md), unless views, a student or
    unlabelled images are asked for.
    """
    named = config.method.model_fields_set
    if "name" in named or config.is_grown:
        return config
    uses_views = _asks_for_views(config)
    config = override(config, "method", name="sla")
    if config.model.weights == "pretrained" and not uses_views:
        return override(config, "method", name="baseline")
    return config if "views_per_step" in named else override(config, "method", views_per_step=1)


def _asks_for_views(config: ClassifierConfig) -> bool:
    """Whether views were asked for, or what needs a method with views: a student, unlabelled images."""
    named = config.method.model_fields_set & {"views", "views_per_step"}
    return bool(named or config.data.unlabelled or config.has_stage(DISTIL))
