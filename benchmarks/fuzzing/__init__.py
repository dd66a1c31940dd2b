"""Damaged and hostile files for every reader of the package; benchmarks/fuzz.py and tests/fuzz run them."""
