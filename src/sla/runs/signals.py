"""Being asked to stop: Ctrl-C and SIGTERM let the step end first."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from sla.errors import SLAError
from sla.runs.distributed import process_numbers

HANG_UP = (signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()  # the terminal was closed


class StoppedError(SLAError):
    """The run was asked to stop and has written a checkpoint."""

    exit_code = 130


class Stop:
    """The first signal asks the loop to end after its step; a second Ctrl-C ends at once."""

    def __init__(self) -> None:
        self.requested = False

    @contextmanager
    def listening(self) -> Iterator["Stop"]:
        """Take the signals over, inside the block; only a main thread can."""
        kept = {}
        try:
            for number in (signal.SIGINT, signal.SIGTERM, *HANG_UP):
                kept[number] = signal.signal(number, self._ask)
        except ValueError:
            pass
        try:
            yield self
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
        if process_numbers().rank == 0:
            again = "; Ctrl-C again stops at once" if number == signal.SIGINT else ""
            print(f"\nsla: stopping after this step, with a checkpoint{again}", file=sys.stderr)
