"""The old place of `sla.datasets.load`; goes in the next version."""

from sla.datasets.load import find, get, load
from sla.renamed import warn_renamed

__all__ = ["find", "get", "load"]

warn_renamed("sla.data.datasets", "sla.datasets.load")
