"""After a run was judged on its held-out images: the same once more with these among the training images."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from sla.datasets.catalogue import CATALOGUE
from sla.datasets.scan import has_val
from sla.disk import replacing
from sla.errors import InputError, shown
from sla.runs.folder import CONFIG, JUDGED, TEMPERATURES
from sla.tasks.classifier.config import AVERAGED, FEATURES, ClassifierConfig
from sla.trees import parse_json

if TYPE_CHECKING:
    from sla.tasks.classifier.judge import JudgedCheckpoint
    from sla.tasks.classifier.run import Run


@dataclass(frozen=True)
class Judgement:
    """What held-out images said of the run before: which model to use, how, and its temperatures."""

    run: str
    checkpoint: str
    inference: str
    temperatures: dict[str, float]

    def apply(
        self, found: "dict[str, JudgedCheckpoint]", chosen: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        """Set the temperatures of a run on all images, which has nothing to fit them on; returns its choice.

        Those of a quick model are its own, by cross-validation.
        """
        name = AVERAGED if self.checkpoint == AVERAGED and AVERAGED in found else "last"
        own = found[name].temperatures
        for other, one in found.items():
            if one.weights == found[name].weights and (name == AVERAGED or not own):
                found[other] = one._replace(temperatures=self.temperatures)
        return None if chosen is None else chosen | {"checkpoint": name, "inference": self.inference}

    def about(self) -> dict[str, Any]:
        """What the result says of it."""
        return {"run": self.run, "checkpoint": self.checkpoint}


def judgement_of(judged: "Run") -> Judgement:
    """What the held-out images said of a finished run."""
    return Judgement(judged.folder.name, judged.checkpoint, judged.headline, judged.temperatures)


def write_judgement(folder: Path, judgement: Judgement) -> None:
    """Write it beside the run on all images, before that begins: whatever resumes it finds it there."""
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / JUDGED) as file:
        file.write((json.dumps(asdict(judgement), indent=2) + "\n").encode())


def read_judgement(folder: Path) -> Judgement | None:
    """The judgement that a run on all images has of the run before it; None of any other run."""
    path = folder / JUDGED
    if not path.is_file():
        return None
    try:
        judgement = TypeAdapter(Judgement).validate_python(parse_json(path.read_text(encoding="utf-8")))
        TEMPERATURES.validate_python({"last": judgement.temperatures})
    except (ValueError, ValidationError):
        raise InputError(
            f"{shown(path)}: damaged; delete it, and --use-all with --resume writes it again"
        ) from None
    return judgement


def folder_for_all(folder: Path) -> Path:
    """The folder of the run on all images, beside that of the run."""
    return folder.absolute().with_name(f"{folder.absolute().name}-all")


def check_use_all(config: ClassifierConfig, folder: Path) -> None:
    """Refused before anything is trained, where nothing would be held out of the training images."""
    source = config.data.source
    if not config.data.hold_out:
        raise InputError("--use-all: data.hold_out=0 holds nothing out: the run uses all images already")
    if _has_val(source):
        raise InputError(f"--use-all: {shown(source)} has held-out images of its own; move them to its train")
    if (folder_for_all(folder) / CONFIG).exists():
        raise InputError(
            f"{shown(folder_for_all(folder))}: exists already; --resume continues what was begun"
        )


def _has_val(source: str) -> bool:
    path = Path(source).expanduser()
    return has_val(path) if path.exists() else source in CATALOGUE and "val" in CATALOGUE[source].splits


def config_for_all(run: "Run") -> ClassifierConfig:
    """The configuration of the model that a finished run chose, with nothing held out.

    As many epochs; as many iterations as it took where the run was not given epochs.
    """
    config, images = run.config, run.result.get("images", {})
    if not config.data.hold_out or not images.get("val"):
        raise InputError(f"{shown(run.folder)}: nothing was held out: it uses all images already")
    own: dict[str, Any] = {}  # of the branch run
    changes: dict[str, Any] = {"data": config.data.model_copy(update={"hold_out": 0.0})}
    if config.run.compile_reason is not None:  # decided again, by the time of this run
        own = {"compile": None, "compile_reason": None}
    if run.checkpoint == FEATURES:
        resolution = run.preprocessing.resolution
        changes |= {
            "method": type(config.method)(name=FEATURES),
            "model": config.model.model_copy(update={"resolution": resolution}),
            "stages": ("train",),
            "mix": None,
        }
    if config.is_features or run.checkpoint == FEATURES or config.run.epochs is not None:
        own |= {"iterations": None, "pace": None}
    elif config.run.pace is not None:  # its minutes are over
        own |= {"iterations": run.result["cost"]["iterations"], "minutes": None, "pace": None}
    return config.model_copy(update={**changes, "run": config.run.model_copy(update=own)})
