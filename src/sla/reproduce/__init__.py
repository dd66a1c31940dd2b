"""Reproducing the paper: its tables as data, their runs, and a comparison of the results."""
