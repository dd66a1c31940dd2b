"""Whether the views can be told: the part of a run's page that says what they are worth here."""

from typing import Any

from sla.errors import shown
from sla.report import html
from sla.report.charts import Strip, strip_chart
from sla.stats import Interval


def view_accuracy_part(result: dict[str, Any]) -> str:
    """The section from a run's result.json; nothing where the method does not tell its views."""
    found = result.get("view_accuracy")
    try:
        overall = Interval(float(found["accuracy"]), *map(float, found["interval"]))  # type: ignore[index]
        by_view = {shown(str(name)): Interval(*map(float, one)) for name, one in found["by_view"].items()}  # type: ignore[index]
        chance, images, advice = float(found["chance"]), int(found["images"]), shown(str(found["advice"]))  # type: ignore[index]
        where = {"val": "held-out", "test": "test"}[found["on"]]  # type: ignore[index]
    except (KeyError, TypeError, ValueError, AttributeError):
        return ""
    rows = {"all views": overall, **by_view}
    return html.section(
        "Can the views be told?",
        html.paragraph(advice),
        html.paragraph(
            f"How often the network says through which of its {len(by_view)} views it sees an image: on "
            f"{images:,} {where} images, each through every view. Guessing would be right on {chance:.1f}%. "
            "Where a view cannot be told, labels that name it teach nothing; where it can, a gain is "
            "possible, not promised.",
            "soft",
        ),
        strip_chart([Strip(name, (), one) for name, one in rows.items()]),
        html.table(
            ("view", "told", "95% interval"),
            [(n, f"{one.mean:.1f}%", f"{one.low:.1f} to {one.high:.1f}") for n, one in rows.items()],
            "How often each view is told",
        ),
    )
