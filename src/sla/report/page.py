"""Pages from templates: what is passed as text is shown as text, and no page needs the network."""

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sla.disk import replacing
from sla.errors import shown
from sla.report.charts import line_chart, reliability_chart, strip_chart
from sla.report.formatting import amount, time_taken
from sla.report.pictures import picture
from sla.stats import Interval


def render(template: str, **values: Any) -> str:
    """A whole page from a file of `templates/`, which sees the values and the charts."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("sla.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    style = Markup(files("sla.report").joinpath("style.css").read_text(encoding="utf-8"))
    functions = (picture, strip_chart, line_chart, reliability_chart)
    found.globals |= {"style": style, **{one.__name__: one for one in functions}}
    found.filters |= {
        "number": format,
        **{one.__name__: one for one in (shown, Interval.ends, amount, time_taken)},
    }
    return found


def write(path: Path, text: str) -> None:
    """Write a page whole or not at all."""
    with replacing(path) as file:
        file.write(text.encode())
