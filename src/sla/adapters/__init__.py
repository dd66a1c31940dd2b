"""Doors to other libraries' loops. timm's training tasks take `sla.training.Step` as it is."""
