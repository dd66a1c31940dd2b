"""Training a classifier on joint labels."""
