"""Names that help texts list, written by `make docs` from what is registered: --help needs no torch."""

METHODS = (
    "baseline",
    "da",
    "mt",
    "sla",
    "sla+sd",
    "distilled",
    "features",
    "lorot",
    "sla+memory",
)
IMBALANCE = (
    "auto",
    "none",
    "cb",
    "ldam-drw",
    "focal",
    "logit-adjust",
)
FEWSHOT_METHODS = (
    "protonet",
    "ridge",
    "r2d2",
    "svm",
)
