"""A run is a folder: locking it, and reading what is in it."""

from contextlib import ExitStack
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from sla.disk import TEMPORARY, exclusive, remove_temporaries
from sla.errors import InputError, shown
from sla.plugins import KEYS, is_passed
from sla.runs.checkpoint import WEIGHTS, check_file, file_checksum, find_checkpoint, remove_unfinished
from sla.runs.config import TrainingConfig, differing_keys, read_config, validate
from sla.trees import parse_json

CONFIG, RESULT, IMAGES = "config.yaml", "result.json", "images.safetensors"
JUDGED = "judged_by.json"  # of a run on all images: what the run before it says
PACE = "pace.csv"  # where the schedule stood during a run with a deadline
MAIN_STAGE = "train"
# Fitted ones are from 1/20 to 20.
Temperature = Annotated[float, Field(ge=1e-3, le=1e3, strict=True)]
TEMPERATURES = TypeAdapter(dict[str, dict[str, Temperature]])
# By checkpoint: its step, and by split and inference (a few-shot run: by shot and inference) the scores.
_Scores = dict[str, float | None]
ACCURACIES = TypeAdapter(dict[str, dict[str, int | dict[str, _Scores] | dict[str, dict[str, _Scores]]]])

SECTIONS = ("anytime", "chosen", "cost", "cross_validation", "images")  # of a result, besides those above

Tree = TypeVar("Tree", bound=TrainingConfig)


def default_folder(source: str, ending: str = "") -> Path:
    """runs/NAME, by the name of the data."""
    return Path("runs") / f"{Path(source).expanduser().absolute().stem or 'run'}{ending}"


def lock_run_folder(folder: Path, resume: bool, stack: ExitStack) -> None:
    """Make the folder this process's own until the stack is closed; there must be a run in it to resume."""
    # A run that failed before its first checkpoint leaves nothing to resume: its folder can be used again.
    unfinished = {".lock", CONFIG, IMAGES, JUDGED, "metrics.csv", PACE, "tensorboard"}
    entries = list(folder.iterdir()) if folder.is_dir() else []
    names = {one.name for one in entries if not (one.is_dir() and not any(one.iterdir()))}  # or a stage's
    taken = any(not TEMPORARY.fullmatch(name) for name in names - unfinished)
    if taken and not resume:
        raise InputError(
            f"{folder}: exists already; continue it with --resume --out {folder} "
            "(resume=True in Python), or choose another --out"
        )
    if resume and not (folder / CONFIG).is_file():
        raise InputError(f"{folder}: no run to resume: no {CONFIG} in it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(exclusive(folder / ".lock", wait=False))
    except BlockingIOError:
        raise InputError(f"{folder}: in use by another process") from None
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}") from None
    stack.callback(_remove_if_unused, folder)
    for checkpoints in checkpoint_folders(folder):
        remove_unfinished(checkpoints)
    remove_temporaries(folder)
    if not resume:
        for name in ("metrics.csv", PACE):
            (folder / name).unlink(missing_ok=True)


def any_stage_begun(folder: Path) -> bool:
    """Whether a stage of the run has a checkpoint to resume from."""
    return any(find_checkpoint(part, "last") is not None for part in checkpoint_folders(folder))


def checkpoint_folders(folder: Path) -> list[Path]:
    """Where the stages of a run keep their checkpoints."""
    return [folder / "checkpoint", *folder.glob("*/checkpoint")]


def _remove_if_unused(folder: Path) -> None:
    """A run that could not even start leaves nothing behind."""
    there = {entry.name for entry in folder.iterdir()}
    if there <= {".lock", IMAGES, JUDGED}:
        for name in there:
            (folder / name).unlink()
        folder.rmdir()


def read_run_config(folder: Path) -> dict[str, Any]:
    """The configuration of a run, not yet validated."""
    if not (folder / CONFIG).is_file():
        raise InputError(f"{folder}: not a run: no {CONFIG} in it")
    return read_config(folder / CONFIG)


def refuse_differences(stored: Tree, config: Tree, folder: Path) -> None:
    """A resumed run keeps its configuration: keys given now must have the values that it has."""
    given = config.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    merged = validate(type(stored), _merge(stored.model_dump(mode="json"), given), str(folder))
    chosen = config.chosen_at_start()
    different = [line for line in differing_keys(merged, stored) if line.partition(":")[0] not in chosen]
    if different:
        raise InputError(f"{folder}: cannot resume with another configuration: {'; '.join(different)}")


def _merge(tree: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The tree with the given values in place of its own, branch by branch."""
    merged = dict(tree)
    for key, value in given.items():
        inner = merged.get(key)
        merged[key] = _merge(inner, value) if isinstance(value, dict) and isinstance(inner, dict) else value
    return merged


def resume_command(config: TrainingConfig, folder: Path) -> str:
    """What continues the run: a command, or a call where Python passed it objects."""
    tree = config.model_dump(mode="json")
    keys = (key.split(".") for key in ("data.source", "data.unlabelled", *KEYS))
    if any(is_passed(str(tree[branch].get(name))) for branch, name in keys):
        return f"sla.fit(..., out={shown(folder)!r}, resume=True)"
    return f"sla train --resume --out {quote(shown(folder))}"


def stage_folder(folder: Path, stage: str) -> Path:
    """Where a stage of a run keeps its checkpoints and metrics: `train` in the run's own folder."""
    return folder if stage == MAIN_STAGE else folder / stage


def last_checkpoint(folder: Path, stage: str = MAIN_STAGE) -> Path | None:
    """The one that a stage would resume from; None before it has begun."""
    return find_checkpoint(stage_folder(folder, stage) / "checkpoint", "last")


def find_model_file(folder: Path, checkpoint: str, stage: str = MAIN_STAGE) -> Path:
    """The model of one of a run's checkpoints: last, best or averaged."""
    found = find_checkpoint(stage_folder(folder, stage) / "checkpoint", checkpoint)
    if found is None:
        raise InputError(f"{folder}: this run has no {checkpoint} checkpoint")
    return found / WEIGHTS


def find_known_weights(folder: Path, checkpoint: str, checksum: str | None) -> tuple[Path, str]:
    """The weights of another run that a run starts from, and their checksum.

    Refused where they are not those that it began with: `checksum`, or None if it has not begun.
    """
    weights = find_model_file(folder, checkpoint)
    check_file(weights)
    found = file_checksum(weights)
    if checksum not in (None, found):
        raise InputError(f"{shown(folder)}: its {checkpoint} weights are not those that the run began with")
    return weights, found


def read_result(folder: Path) -> dict[str, Any]:
    """The result of a finished run, {} before it is finished; refused when it is damaged."""
    path = folder / RESULT
    if not path.is_file():
        return {}
    try:
        result = parse_json(path.read_text(encoding="utf-8"))
        if not isinstance(result, dict):
            raise ValueError
        TEMPERATURES.validate_python(result.get("temperatures", {}))
        ACCURACIES.validate_python(result.get("accuracies"))
        if not all(isinstance(result.get(name, {}), dict) for name in SECTIONS):
            raise ValueError
    except (ValueError, ValidationError):
        raise damaged_result(folder) from None
    return result


def damaged_result(folder: Path) -> InputError:
    """What is said of a result that is not as it was written."""
    again = f"resuming the run (--resume --out {shown(folder)}) writes it again"
    return InputError(f"{shown(folder / RESULT)}: damaged; {again}")


def has_result(folder: Path) -> bool:
    """Whether the run has a readable result: resuming must not change what it says about cost and command."""
    try:
        return bool(read_result(folder))
    except InputError:
        return False
