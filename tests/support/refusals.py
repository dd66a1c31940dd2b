"""Wrong input as a user meets it: one clear line, and which words are in it."""

import re

import pytest

from sla.errors import InputError


def refused(words, call, /, *arguments, **options):
    """The message with which `call(*arguments, **options)` refuses its input: one line that has `words`, or
    that the pattern `words` is found in."""
    with pytest.raises(InputError) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message, f"more than one line: {message!r}"
    assert words in message or re.search(words, message), f"{words!r} is not in {message!r}"
    return message


def fails(error, words, call, /, *arguments, **options):
    """The same for failures of another kind: exactly this class or one below it."""
    with pytest.raises(error, match=words) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
