"""What a run's result must have before it is shown: a result.json may come from anyone."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sla.runs.folder import damaged_result

Percent = Annotated[float, Field(ge=0, le=100, strict=True)]
Count = Annotated[int, Field(ge=0, le=10**12, strict=True)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class _Scores(_Part):
    top1: Percent
    ece: Percent
    old: Percent | None = None
    new: Percent | None = None


class _Checkpoint(_Part):
    val: dict[str, _Scores] = {}
    test: dict[str, _Scores] = {}


class _Chosen(_Part):
    checkpoint: str
    inference: str
    inferences: dict[str, str] = {}


class _Advice(_Part):
    advice: str


class _Result(_Part):
    headline: str = ""
    accuracies: dict[str, _Checkpoint] = {}
    images: dict[str, Count] = {}
    chosen: _Chosen | None = None
    anytime: dict[str, list[Any]] = {}
    view_accuracy: _Advice | None = None


def check_result(result: dict[str, Any], folder: Path) -> None:
    """Refuse the result of a finished run that lacks what is shown of it; an unfinished run has none."""
    if not result:
        return
    try:
        found = _Result.model_validate(result)
    except ValidationError:
        raise damaged_result(folder) from None
    for checkpoint in found.accuracies.values():
        for split in ("val", "test"):
            if getattr(checkpoint, split) and not (found.headline and found.images.get(split)):
                raise damaged_result(folder)
