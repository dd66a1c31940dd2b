"""Being asked to stop: Ctrl-C and SIGTERM let the step end first."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from sla.errors import SLAError
from sla.progress import Progress
from sla.runs.distributed import process_numbers

HANG_UP = (signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()  # the terminal was closed


class StoppedError(SLAError):
    """The run was asked to stop and has written a checkpoint."""

    exit_code = 130


class LeftError(Exception):
    """Work that was left because the run was asked to stop."""


class Stop:
    """The first signal asks the loop to end after its step; a second Ctrl-C ends at once."""

    def __init__(self) -> None:
        self.requested = False
        self._waits = False

    @contextmanager
    def listening(self) -> Iterator["Stop"]:
        """Take the signals over, inside the block; only a main thread can."""
        with _handling(self._ask, (signal.SIGINT, signal.SIGTERM, *HANG_UP)):
            yield self

    @contextmanager
    def leaving(self, inner: Progress) -> Iterator[Progress]:
        """Work that can be done again: it is left, with a LeftError, where it next says how far it is.

        A second Ctrl-C changes nothing there: whoever catches the error has a checkpoint to write.
        """
        self._waits = True
        try:
            yield _Leaving(self, inner)
        finally:
            self._waits = False

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT and not self._waits:
            raise KeyboardInterrupt
        if self.requested:
            return
        self.requested = True
        if process_numbers().rank == 0:
            again = "; Ctrl-C again stops at once" if number == signal.SIGINT else ""
            print(f"\nsla: stopping after this step, with a checkpoint{again}", file=sys.stderr)


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does: whoever started processes in it can end them."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handling(interrupt, (signal.SIGTERM, *HANG_UP)):
        yield


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], None], numbers: tuple[int, ...]) -> Iterator[None]:
    """Take signals over, inside the block; only a main thread can."""
    kept = {}
    with suppress(ValueError):
        for number in numbers:
            kept[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in kept.items():
            signal.signal(number, before)


class _Leaving(Progress):
    """Passes on how far it is, until the run is asked to stop."""

    def __init__(self, stop: Stop, inner: Progress) -> None:
        self.stop, self.message, self.step = stop, inner.message, inner.step  # type: ignore[method-assign]
        self.inner = inner

    def advance(self, what: str, done: int, total: int | None) -> None:
        if self.stop.requested:
            raise LeftError
        self.inner.advance(what, done, total)
