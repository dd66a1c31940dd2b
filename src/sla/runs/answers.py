"""What a prediction says: the class, or that the model is unsure."""

UNSURE = "unsure"


def answer_of(name: str, probability: float, least: float, unlike: bool = False) -> str:
    """The most likely class, or `unsure` below the probability `least`; with a `least`, also if it is unlike.

    `unlike`: the picture is unlike the training pictures, whose probabilities say nothing of it.
    """
    return UNSURE if probability < least or (unlike and least > 0) else name
