"""What a prediction says: the class, or that the model is unsure."""

UNSURE = "unsure"


def answer_of(name: str, probability: float, least: float) -> str:
    """The most likely class, or `unsure` where its probability is below `least`."""
    return name if probability >= least else UNSURE
