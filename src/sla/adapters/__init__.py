"""Doors to other libraries' loops. timm's training tasks take a classifier as it is."""
