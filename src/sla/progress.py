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


def duration(seconds: float) -> str:
    """`0.4 seconds`, `45 seconds`, `12 minutes`, `3.4 hours`, `12 days`, `1,200 years`."""
    if seconds < 90:
        number = f"{seconds:{'.0f' if seconds >= 1 else '.1g'}}"
        return f"{number} second{'' if number == '1' else 's'}"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    hours = seconds / 3600
    if hours < 48:
        return f"{hours:.1f} hours"
    return f"{hours / 24:.3g} days" if hours < 24 * 700 else f"{hours / 24 / 365:,.0f} years"


class StepsOnly(Progress):
    """Passes on the training steps of a part of some larger work; messages and passes are left out."""

    def __init__(self, inner: Progress) -> None:
        self.inner = inner

    def step(self, done: int, total: int, metrics: dict[str, float]) -> None:
        """As it is."""
        self.inner.step(done, total, metrics)
