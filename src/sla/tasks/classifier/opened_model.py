"""Which model of a run is opened: its checkpoint, the stage that trained it, and its files."""

from pathlib import Path
from typing import Any

from sla.errors import InputError, shown
from sla.runs.checkpoint import find_checkpoint, step_of
from sla.runs.folder import MAIN_STAGE, find_model_file, last_checkpoint, read_result
from sla.tasks.classifier.config import AVERAGED, DISTIL, FEATURES


def chosen_checkpoint(folder: Path) -> str:
    """What the result says; of a run that has only begun, what it has."""
    chosen = read_result(folder).get("chosen", {}).get("checkpoint")
    if chosen in (FEATURES, AVERAGED, "last", "best"):
        return str(chosen)
    return FEATURES if last_checkpoint(folder, FEATURES) and not last_checkpoint(folder) else "last"


def judged_inference(result: dict[str, Any], checkpoint: str) -> str | None:
    """The inference by which held-out images judged a checkpoint; None where nothing was chosen."""
    chosen = result.get("chosen", {})
    named = chosen.get("inferences", {}).get(checkpoint)
    return named or (chosen.get("inference") if chosen.get("checkpoint") == checkpoint else None)


def stage_of(folder: Path, checkpoint: str) -> str:
    """The last stage, whose model is the student, once it has begun; the first for the quick model."""
    if checkpoint == FEATURES:
        return FEATURES
    return DISTIL if checkpoint != AVERAGED and last_checkpoint(folder, DISTIL) else MAIN_STAGE


def find_opened_file(folder: Path, checkpoint: str, stage: str) -> Path:
    """The file with the model of a stage's checkpoint; `features` is the quick model of the first stage."""
    if checkpoint == AVERAGED and find_checkpoint(folder / "checkpoint", AVERAGED) is None:
        raise InputError(
            f"{shown(folder)}: this run has no averaged checkpoint; --checkpoint last is the trained model, "
            "--checkpoint features the quick one, where there is one"
        )
    if checkpoint != FEATURES:
        return find_model_file(folder, checkpoint, stage)
    if last_checkpoint(folder, FEATURES) is None:
        raise InputError(f"{shown(folder)}: this run has no stage features")
    return find_model_file(folder, "last", FEATURES)


def folders_with(model_file: Path) -> list[Path]:
    """The folders with this model: of a best that is also last, other files lie beside last alone."""
    own = model_file.parent
    return [own, *own.parent.glob(f"last-{step_of(own):08d}")]
