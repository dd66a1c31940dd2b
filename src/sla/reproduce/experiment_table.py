"""The section of one table, figure or study: our numbers, and the paper's where they compare."""

from sla.reproduce.figures import AXES, drawable, series_of
from sla.reproduce.names import EXPERIMENTS, STUDIES
from sla.reproduce.paper import Column, Experiment, Row, experiment
from sla.reproduce.results import Place, Results
from sla.reproduce.section import Section
from sla.reproduce.verdicts import points
from sla.stats import interval, mean_sd

PAPER_HEADER = ("", "paper", "gain", "ours", "seeds", "gain", "difference, 95% interval")
# Smaller scales: gains are compared, levels are not. A small run's accuracy says nothing beside the paper's.
HEADER = ("", "ours", "seeds", "training accuracy", "our difference, 95% interval", "the paper's difference")
STUDY_HEADER = ("", "accuracy", "seeds", "training accuracy", "difference, 95% interval")
FITTED = 95.0  # percent of the training labels; below it a network has not learnt its task


def table_section(results: Results, name: str, folded: bool = False) -> Section:
    """Of the paper's experiments with its numbers; of a study of our own, which has none, without."""
    found, at_paper_scale = experiment(name), results.scale == "paper"
    header: tuple[str, ...] = PAPER_HEADER if at_paper_scale else HEADER
    shown = _with_levels if at_paper_scale else _with_gains
    words = ["Errors in percent." if found.metric == "error" else "Accuracies in percent."]
    if name in STUDIES:
        header, shown = STUDY_HEADER, _with_training
        words = [*([found.answer] if found.answer else []), f"Not in the paper. {words[0]}"]
    sized = any(row.kind == "ensemble" for row in found.rows.values())  # parameters matter there
    rows = []
    for column, place in found.columns.items():
        for row_name, row in found.rows.items():
            cell = Place(name, row_name, column)
            printed = at_paper_scale and column in found.printed.get(row_name, {})
            if column not in (row.columns or found.columns) or not (printed or results.of(cell)):
                continue
            size = (_parameters(results, cell),) if sized else ()
            rows.append((_label(place, row), *shown(results, found, cell), *size))
    title = f"{EXPERIMENTS[name]}, {results.scale} scale"
    lines = list(drawn.values()) if drawable(drawn := series_of(results, name)) else []
    picture = f"{name}-{results.scale}.png" if lines else ("toy.png" if name == "toy" else "")
    header = (*header, "parameters") if sized else header
    axis = AXES.get(name, ("", ""))
    return Section(title, words, [(title, header, rows)], found.notes, lines, axis, picture, folded)


def _label(column: Column, row: Row) -> str:
    marks = (" (not in the paper)" if row.ours else "") + (" (removed from the code)" if row.removed else "")
    return f"{column.label}: {row.label}{marks}"


def _with_levels(results: Results, found: Experiment, cell: Place) -> tuple[str, ...]:
    """The paper's number and gain, then ours."""
    printed = found.printed.get(cell.row, {}).get(cell.column)
    cited = ", cited" if found.rows[cell.row].cited else ""
    theirs = (printed.text + cited, printed.gain_text) if printed else ("", "")
    return (*theirs, *_ours(results, found, cell))


def _with_gains(results: Results, found: Experiment, cell: Place) -> tuple[str, ...]:
    """Our number with its training accuracy, then our difference and the paper's, each to its own row."""
    theirs, against = "", found.rows[cell.row].against
    numbers = [found.printed.get(row, {}).get(cell.column) for row in (cell.row, against or "")]
    if numbers[0] is not None and numbers[1] is not None:
        theirs = f"{numbers[0].value - numbers[1].value:+.2f}"
    return (*_with_training(results, found, cell), theirs)


def _with_training(results: Results, found: Experiment, cell: Place) -> tuple[str, ...]:
    """Our number with its training accuracy, and our difference."""
    ours, seeds, _, difference = _ours(results, found, cell)
    return ours, seeds, _training_accuracy(results, cell), difference


def _training_accuracy(results: Results, place: Place) -> str:
    records = results.records[place].values()
    found = [value for record in records if (value := record.score("train")) is not None]
    if not found:
        return ""
    mean = mean_sd(found)[0]
    return f"{mean:.2f}" + (f", below {FITTED:g}" if mean < FITTED else "")


def _ours(results: Results, found: Experiment, place: Place) -> tuple[str, ...]:
    """Mean and sd, number of seeds, relative gain, and paired difference to the row it is compared with."""
    numbers = results.of(place)
    if not numbers:
        return "", "", "", ""
    mean, sd = mean_sd(numbers)
    ours = f"{mean:.2f}" + (f" ± {sd:.2f}" if len(numbers) > 1 else "")
    against = found.rows[place.row].against
    pairs = results.by_seed(place, place._replace(row=against)).values() if against else ()
    if not pairs:
        return ours, str(len(numbers)), "", ""
    over = sum(b for _, b in pairs)
    gain = f"{100 * (sum(a for a, _ in pairs) - over) / over:+.2f}%" if over else ""
    return ours, str(len(numbers)), gain, points(interval([a - b for a, b in pairs]))


def _parameters(results: Results, place: Place) -> str:
    counted = {record.parameters for record in results.records.get(place, {}).values()}
    return " to ".join(f"{count:,}" for count in sorted(count for count in counted if count))
