"""Doors to other libraries' loops. timm's training tasks take `sla.tasks.classifier.step.Step` as it is."""
