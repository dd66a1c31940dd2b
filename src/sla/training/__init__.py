"""Training: one step, the loop around it."""

from sla.training.step import Step

__all__ = ["Step"]
