"""`sla views`: which views are recognisable in these images, before any training."""

from typing import Annotated

import typer

from sla.cli.output import say
from sla.cli.settings import RefuseOrSkip
from sla.errors import InputError


def views(
    data: Annotated[str, typer.Argument(help="A folder, a CSV, or the name of a dataset.")],
    candidates: Annotated[
        str | None, typer.Option(help="Sets of views, comma-separated, e.g. rot4,rgb3,rot4*rgb3.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Training time. Default: about 1.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    on_bad_image: RefuseOrSkip = "refuse",
) -> None:
    """Measure which views are recognisable: train a small network and test it on held-out images.

    SLA cannot help with a view that is not recognisable. With one that is, a gain is possible, not certain.
    """
    from sla.cli.display import print_table
    from sla.cli.output import showing_progress
    from sla.tasks.classifier.view_accuracy import CAN, advise
    from sla.tasks.classifier.view_probe import CANDIDATES, probe_data, split_candidates

    if minutes is not None and not 0 < minutes < float("inf"):
        raise InputError(f"--minutes must be above 0, not {minutes}")
    named = split_candidates(candidates) if candidates is not None else CANDIDATES
    with showing_progress() as progress:
        found = probe_data(
            data, named, seed=seed, minutes=minutes, on_bad_image=on_bad_image, progress=progress
        )
    rows = []
    for one in found:
        mean, low, high = one.accuracy
        scores = f"{mean:.1f}", f"{low:.1f} to {high:.1f}", one.verdict
        rows.append((one.views.text, len(one.views), f"{one.chance:.1f}", *scores))
    print_table(("views", "M", "guessing %", "recognised %", "95% interval", "verdict"), rows)
    good = [one.views.text for one in found if one.verdict == CAN]
    for one in found:
        say(advise(one, good))
    say(f"Measured on {found[0].images:,} held-out images that the small network did not learn from.")
