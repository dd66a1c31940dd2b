"""After a run was judged on its held-out images: the same once more with these among the training images."""

import json
from pathlib import Path
from typing import Any

from sla.disk import replacing
from sla.errors import InputError, shown
from sla.runs.folder import RESULT, read_result
from sla.tasks.classifier.config import AVERAGED, FEATURES, ClassifierConfig
from sla.tasks.classifier.run import Run


def config_for_all(run: Run) -> ClassifierConfig:
    """The configuration of the model that a finished run chose, with nothing held out.

    As many epochs; as many iterations as it took where the run was not given epochs.
    """
    config, images = run.config, run.result.get("images", {})
    if not config.data.hold_out or not images.get("val"):
        raise InputError(f"{shown(run.folder)}: nothing was held out: it uses all images already")
    changes: dict[str, Any] = {"data": config.data.model_copy(update={"hold_out": 0.0})}
    if run.checkpoint == FEATURES:
        resolution = run.preprocessing.resolution
        changes |= {
            "method": type(config.method)(name=FEATURES),
            "model": config.model.model_copy(update={"resolution": resolution}),
            "stages": ("train",),
            "mix": None,
        }
    if config.is_features or run.checkpoint == FEATURES or config.run.epochs is not None:
        changes["run"] = config.run.model_copy(update={"iterations": None, "pace": None})
    elif config.run.pace is not None:  # its minutes are over
        length = {"iterations": run.result["cost"]["iterations"], "minutes": None, "pace": None}
        changes["run"] = config.run.model_copy(update=length)
    return config.model_copy(update=changes)


def keep_judgement(folder: Path, judged: Run) -> None:
    """Write into the result of a run on all images by which run it was judged, and its temperatures.

    Those of a quick model are its own, by cross-validation.
    """
    result = read_result(folder)
    if judged.checkpoint == AVERAGED and AVERAGED in result["accuracies"]:
        result["chosen"] = result["chosen"] | {"checkpoint": AVERAGED, "inference": judged.headline}
        result["temperatures"] = result.get("temperatures", {}) | {AVERAGED: judged.temperatures}
    else:
        if "chosen" in result:
            result["chosen"] = result["chosen"] | {"checkpoint": "last", "inference": judged.headline}
        if not result.get("temperatures", {}).get("last"):
            result["temperatures"] = result.get("temperatures", {}) | {"last": judged.temperatures}
    chosen = judged.result["accuracies"][judged.checkpoint]
    scores = {split: chosen[split] for split in ("val", "test") if split in chosen}
    result["judged_by"] = {"run": judged.folder.name, "checkpoint": judged.checkpoint, **scores}
    with replacing(folder / RESULT) as file:
        file.write((json.dumps(result, indent=2) + "\n").encode())
