"""What long work tells whoever waits for it: one object goes through every call that takes its time."""


class Progress:
    """Receives messages, the state of a pass, and training steps; shows nothing. Subclass it to show them."""

    def message(self, text: str) -> None:
        """A line that stays: what was found, chosen or finished."""

    def advance(self, what: str, done: int, total: int | None) -> None:
        """How far a pass is; None where its length is unknown."""

    def step(self, done: int, total: int, metrics: dict[str, float]) -> None:
        """A training step is over; `metrics` has the newest numbers, {} between two rows."""


QUIET = Progress()


class StepsOnly(Progress):
    """Passes on the training steps of a part of some larger work; messages and passes are left out."""

    def __init__(self, inner: Progress) -> None:
        self.inner = inner

    def step(self, done: int, total: int, metrics: dict[str, float]) -> None:
        """As it is."""
        self.inner.step(done, total, metrics)
