"""The claims of the paper as comparisons of its cells."""

from collections.abc import Sequence

from sla.reproduce.paper import experiment, experiments
from sla.reproduce.results import Place
from sla.reproduce.rule import Claim, Contrast

NOT_BELOW = 0.5  # points below that still count as not below
COMPARABLE = 1.5  # points within which one model counts as comparable to an ensemble
LITTLE = 2.0  # a gain of fewer points counts as little
GENERIC = ("cifar10", "cifar100", "tiny-imagenet")
FITTING = "With ten images per class every method fits its training images; in the paper they do not."
COSTED = ("cifar10", "cifar100")  # columns whose baseline was also trained for longer
FINE_GRAINED = ("cub200", "mit67", "stanford-dogs")


def _versus(table: str, row: str, against: str, columns: Sequence[str] = ()) -> list[Contrast]:
    """A row is better than another in each column: higher accuracy, or lower error."""
    found, sign = experiment(table), -1 if experiment(table).metric == "error" else 1
    names = found.rows[row].label, found.rows[against].label
    return [
        Contrast(
            f"{names[0]} over {names[1]}, {found.columns[column].label}",
            (Place(table, row, column), Place(table, against, column)),
            lambda a, b: sign * (a - b),
        )
        for column in columns or found.rows[row].columns or tuple(found.columns)
    ]


def row_contrasts() -> list[Contrast]:
    """Every row of a table against the row that its gain is relative to; not of pilots, whose seeds chose."""
    return [
        contrast
        for table, found in experiments().items()
        if not found.first_seed
        for name, row in found.rows.items()
        if row.against is not None
        for contrast in _versus(table, name, row.against)
    ]


def _gap(row: str, against: str) -> Contrast:
    """The gap between train and test accuracy is larger for one method than for another (Figure 3)."""
    rows = [f"{name}-{part}" for name in (row, against) for part in ("train", "test")]
    places = [Place("figure3", name, "cifar100") for name in rows]
    label = f"train-test gap of {row.upper()} over that of {against.upper()}, CIFAR100"
    return Contrast(label, tuple(places), lambda a, b, c, d: (a - b) - (c - d))


def _growth(row: str) -> Contrast:
    """The relative gain with 25 images per class is larger than with 100 (Figure 4)."""
    places = [Place("figure4", name, column) for column in ("n25", "n100") for name in (row, "baseline")]
    label = f"relative gain of {experiment('figure4').rows[row].label}, 25 images per class over 100"
    return Contrast(label, tuple(places), lambda a, b, c, d: 100 * (a / b - c / d))


def _at_equal_cost(table: str, row: str, against: str = "views baseline-4") -> list[Contrast]:
    """A row with all four views per step against one of a study whose training takes the same FLOP."""
    name, other = against.split()
    columns = [c for c in COSTED if c in (experiment(name).rows[other].columns or experiment(name).columns)]
    label = f"{experiment(table).rows[row].label} over {experiment(name).rows[other].label}"
    return [
        Contrast(f"{label}, {column}", (Place(table, row, column), Place(name, other, column)))
        for column in columns
    ]


def claims() -> list[Claim]:
    """All claims, in the order of the paper."""
    smaller = ("m1", "m2-ag", "m4-ag", "m3-ag", "m6-ag", "m6-composed-ag")
    strong = ("cutout", "autoaugment", "fastautoaugment", "cutmix")
    simclr = Contrast(
        "gain of SLA+SD after SimCLR over that of SimCLR alone, CIFAR10",
        tuple(Place("table11", row, "cifar10") for row in ("simclr-sd", "simclr", "random")),
        lambda both, alone, none: (both - alone) - (alone - none),
    )
    averaged = []
    for column in GENERIC:
        label = f"SLA+AG over DA averaged, {experiment('table2').columns[column].label}"
        averaged.append(
            Contrast(label, (Place("table2", "sla-ag", column), Place("table1", "da-ag", column)))
        )
    return [
        Claim(
            "Under rotation, data augmentation and multi-task learning are both below the baseline",
            [_versus("table1", "baseline", row) for row in ("da", "mt")],
        ),
        Claim(
            f"SLA in single inference is not below the baseline (by more than {NOT_BELOW:g} points)",
            [_versus("table1", "sla-si", "baseline")],
            above=-NOT_BELOW,
            equal=_at_equal_cost("table1", "sla-si"),
        ),
        Claim(
            "DA has the largest gap between train and test",
            [[_gap("da", "mt")], [_gap("da", "sla")]],
            reading=f"{FITTING} The gap is what test accuracy leaves.",
        ),
        Claim(
            "MT is below SLA, both on train and on test",
            [_versus("figure3", f"sla-{part}", f"mt-{part}") for part in ("train", "test")],
            reading=f"{FITTING} Test accuracies are in Table 1.",
        ),
        Claim(
            "SLA aggregated is above the baseline",
            [_versus("table3", "rotation-ag", "baseline")],
            equal=_at_equal_cost("table3", "rotation-ag"),
        ),
        Claim(
            f"SLA aggregated is comparable to an ensemble of four (at most {COMPARABLE:g} points below)",
            [_versus("table2", "sla-ag", "ie")],
            above=-COMPARABLE,
            reading="An ensemble gains more here than in the paper (IE over Baseline), probably because "
            "networks trained on few images differ more, which one SLA model cannot average out. The "
            "ensemble has four times the parameters; training and passes cost the same.",
        ),
        Claim("An ensemble of SLA models is above the ensemble", [_versus("table2", "ie-sla-ag", "ie")]),
        Claim(
            "SLA distilled is above the baseline, at the same inference cost",
            [_versus("table3", "rotation-sd", "baseline")],
            equal=_at_equal_cost("table3", "rotation-sd"),
        ),
        Claim(
            "Colour permutation helps fine-grained data",
            [_versus("table3", "colour-ag", "baseline", FINE_GRAINED)],
        ),
        Claim(
            f"Colour permutation helps little or not at all on other data (less than {LITTLE:g} points)",
            [_versus("table3", "baseline", "colour-ag", GENERIC)],
            above=-LITTLE,
            reading="At equal iterations six colour orders train for six times the FLOP. Against a baseline "
            "of four times the FLOP little or nothing is left of the gain: most of it is training time.",
            equal=_at_equal_cost("table3", "colour-ag"),
        ),
        Claim(
            "Composed views help most at M = 12, more than each smaller M",
            [_versus("table9", "m12-ag", row) for row in smaller],
        ),
        Claim("Composed views help less at M = 24 than at M = 12", [_versus("table9", "m12-ag", "m24-ag")]),
        Claim(
            "SLA aggregated is above ten-crop",
            [_versus("table8", "sla-ag", "ten-crop")],
            equal=_at_equal_cost("table8", "sla-ag", "rivals ten-crop"),
        ),
        Claim(
            "Gains grow as data shrinks",
            [[_growth("sla-ag"), _growth("sla-sd")]],
            reading="The effect is the relative gain with 25 images per class minus that with 100. On "
            "average that of SLA+AG grows and that of SLA+SD does not; the seeds differ too much to decide.",
        ),
        Claim(
            "SLA distilled lowers the error under Cutout, AutoAugment, Fast AutoAugment's search, and CutMix",
            [[c for row in strong for c in _versus("table5", f"{row}-sd", row)]],
        ),
        Claim(
            "SLA aggregated helps ProtoNet and ridge regression in few-shot learning",
            [[c for row in ("protonet", "metaoptnet-rr") for c in _versus("table6", f"{row}-ag", row)]],
        ),
        Claim(
            "SLA distilled helps the baseline, CB-RW and LDAM-DRW on long tails",
            [[c for row in ("baseline", "cb-rw", "ldam-drw") for c in _versus("table7", f"{row}-sd", row)]],
        ),
        Claim(
            "SLA helps with thousands of labels",
            [[c for row in ("sla-si", "sla-ag", "sla-sd") for c in _versus("table10", row, "baseline")]],
        ),
        Claim(
            "SimCLR pre-training alone is marginal; with SLA distilled it is not",
            [[simclr], _versus("table11", "simclr-sd", "simclr")],
            reading="Here pre-training alone gains, probably because it sees ten times as many images as "
            "have labels; in the paper it sees the images that are trained on. The other half agrees with "
            "the paper: SLA distilled adds to it (Table 11).",
        ),
        Claim(
            "SLA aggregated, one view per step, is above the baseline of the same training FLOP, 4 C",
            [_versus("views", "k1-4", "baseline-4")],
            ours=True,
        ),
        Claim(
            "SLA aggregated is above DA averaged over the same views, at the same cost",
            [averaged],
            ours=True,
        ),
    ]
