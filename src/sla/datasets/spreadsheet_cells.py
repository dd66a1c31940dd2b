"""Text in the cells of a CSV that a person may open in a spreadsheet, which would run it as a formula."""

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a formula can begin with


def escape_cell(text: str) -> str:
    """The text, with a quote before it if a spreadsheet would take it for a formula."""
    return f"'{text}" if _is_formula(text) else text


def unescape_cell(text: str) -> str:
    """What `escape_cell` was given."""
    return text[1:] if text.startswith("'") and _is_formula(text) else text


def _is_formula(text: str) -> bool:
    """After any quotes, so that a quoted formula, too, gets one more and comes back as it was."""
    return text.lstrip("'").startswith(FORMULA)
