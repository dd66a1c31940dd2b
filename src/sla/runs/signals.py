"""Being asked to stop: Ctrl-C and SIGTERM let the step end first."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

HANG_UP = (signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()  # the terminal was closed


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
        if int(os.environ.get("RANK", "0")) == 0:
            again = "; Ctrl-C again stops at once" if number == signal.SIGINT else ""
            print(f"\nsla: stopping as soon as nothing is lost by it{again}", file=sys.stderr)
