"""How much a request may bring."""

PICTURE_BYTES = 32 << 20
REQUEST_BYTES = 256 << 20
HELD_BYTES = 512 << 20  # of all requests together, until each is answered; a further one is refused
MOST_PICTURES = 64  # in one form
MOST_FIELDS = 8  # of a form, besides pictures
FIELD_BYTES = 64 << 10
LONGEST_NAME = 200  # characters of a file's name that are repeated in an answer
SECONDS = 60.0  # for a body to arrive
MOST_REQUESTS = 256  # with their bodies here, in work or waiting; a further one is refused
DECODERS = 8  # requests whose pictures are decoded at the same time


def too_large(most: int) -> str:
    """What is said about an upload beyond a limit."""
    return f"larger than the {most >> 20:,} MB allowed"
