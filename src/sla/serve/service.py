"""What the routes share: the model in its thread, the nearest training pictures, the corrections."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from sla import __version__
from sla.datasets.scan import EXTENSIONS
from sla.errors import shown
from sla.images.decode import MAX_PIXELS
from sla.images.files import available_cores
from sla.images.store import Pixels
from sla.progress import Progress
from sla.runs.answers import UNSURE, answer_of
from sla.serve.corrections import Corrections
from sla.serve.limits import DECODERS, MOST_PICTURES, PICTURE_BYTES
from sla.serve.nearest import NearestPictures
from sla.serve.predictor import Answer, Predictor
from sla.serve.worker import Worker
from sla.tasks.classifier.run import Run

T = TypeVar("T")
EMBEDDED = 4  # training pictures that go through the model together


class Service:
    """A run that answers; `lifespan` starts its threads and ends them."""

    def __init__(
        self, run: Run, inference: str | None, min_confidence: float, nearest: int, progress: Progress
    ) -> None:
        self.run, self.min_confidence, self.count = run, min_confidence, nearest
        self.predictor = Predictor(run, inference)
        self.worker = Worker(self.predictor)
        self.corrections = Corrections(run.folder, run.classes)
        self.nearest = NearestPictures(run, self._embed, progress) if nearest else None
        self.threads = ThreadPoolExecutor(available_cores(), "sla-serve")
        self.decoding, self.requests = asyncio.Semaphore(DECODERS), 0

    @asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncIterator[None]:
        """The threads run while the application does."""
        self.worker.start()
        if self.nearest is not None:
            self.nearest.start()
        try:
            yield
        finally:
            if self.nearest is not None:
                self.nearest.stop()
            self.worker.stop()
            if self.nearest is not None:
                self.nearest.wait(2)  # reading images may take longer; the process does not wait for it
            self.threads.shutdown(cancel_futures=True)

    def _embed(self, pixels: Pixels) -> Tensor:
        """A few at a time: a picture that someone waits for, or the end of the server, comes in between."""
        parts = zip(pixels.images.split(EMBEDDED), pixels.aspect.split(EMBEDDED), strict=True)
        found = [self.worker.in_background(partial(self.predictor.features, Pixels(*one))) for one in parts]
        return torch.cat([one.result() for one in found])

    async def decode(self, data: bytes) -> Pixels:
        """The bytes of an image file as pixels; refused where they are none."""
        return await self._in_thread(self.predictor.decode, data)

    async def classify(self, pixels: Pixels) -> Answer:
        """The answer to one picture."""
        return await asyncio.wrap_future(self.worker.submit(pixels))

    async def correct(self, data: bytes, label: str) -> str:
        """Keep a corrected picture; its path in the run's folder."""
        return await self._in_thread(self.corrections.save, data, label)

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.threads, work, *arguments)

    def describe(self, found: Answer, least: float, top: int) -> dict[str, Any]:
        """An answer as JSON has it."""
        classes, names = self._best(found.probabilities, top), self.predictor.view_names
        views = [] if found.views is None else [self._best(one, 1)[0] for one in found.views]
        best = classes[0]
        return {
            "class": answer_of(best["class"], best["probability"], least, bool(found.unlike)),
            "probability": best["probability"],
            "classes": classes,
            "views": [{"view": name, **view} for name, view in zip(names, views, strict=False)],
            "unlike": found.unlike,
            "nearest": self._describe_nearest(found),
        }

    def _best(self, probabilities: Tensor, top: int) -> list[dict[str, Any]]:
        best = probabilities.topk(min(top, len(probabilities)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [{"class": self.run.classes[number], "probability": round(p, 6)} for number, p in pairs]

    def _describe_nearest(self, found: Answer) -> list[dict[str, Any]]:
        known = self.nearest.found if self.nearest is not None else None
        if known is None:
            return []
        return [
            {
                "class": known.classes[place],
                "file": known.names[place],
                "similarity": round(similarity, 4),
                "picture": f"nearest/{place}",
            }
            for place, similarity in known.nearest(found.features, self.count)
        ]

    def info(self) -> dict[str, Any]:
        """What a program or the page needs to know before it asks."""
        nearest = self.nearest
        return {
            "run": shown(self.run.folder.absolute().name),
            "checkpoint": self.run.checkpoint,
            "classes": self.run.classes,
            "inference": self.predictor.inference,
            "views": list(self.predictor.view_names),
            "min_confidence": self.min_confidence,
            "unsure": UNSURE,
            "unfinished": self.run.unfinished,
            "limits": {"bytes": PICTURE_BYTES, "pictures": MOST_PICTURES, "pixels": MAX_PIXELS},
            "extensions": sorted(EXTENSIONS),
            "nearest": {"state": "off"}
            if nearest is None
            else {"state": nearest.state, "done": nearest.done, "total": nearest.total, "note": nearest.note},
            "version": __version__,
        }
