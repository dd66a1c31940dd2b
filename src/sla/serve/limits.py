"""How much a request may bring."""

PICTURE_BYTES = 32 << 20
REQUEST_BYTES = 256 << 20
MOST_PICTURES = 64  # in one form
MOST_FIELDS = 8  # of a form, besides pictures
FIELD_BYTES = 64 << 10
LONGEST_NAME = 200  # characters of a file's name that are repeated in an answer
SECONDS = 60.0  # for a body to arrive
MOST_REQUESTS = 256  # in work or waiting; a further one is refused
READERS = 8  # requests that are read and decoded at the same time; the others wait with their bodies unread


def too_large(most: int) -> str:
    """What is said about an upload beyond a limit."""
    return f"larger than the {most >> 20:,} MB allowed"
