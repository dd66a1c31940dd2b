"""The old place of `sla.datasets`; goes in the next version."""
