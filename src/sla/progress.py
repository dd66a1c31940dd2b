"""What long work tells whoever waits for it: one object goes through every call that takes its time."""


class Progress:
    """Receives messages, how far a pass is, and the steps of a training; shows nothing: subclass it."""

    def message(self, text: str) -> None:
        """A line that stays: what was found, chosen or finished."""

    def advance(self, what: str, done: int, total: int | None) -> None:
        """How far a pass is; None where its length is unknown."""

    def step(self, done: int, total: int, metrics: dict[str, float]) -> None:
        """A training step is over; `metrics` has the newest numbers, {} between two rows."""

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """The same as `advance`."""
        self.advance(what, done, total)


QUIET = Progress()
