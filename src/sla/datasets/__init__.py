"""Datasets: the catalogue, where files lie, official formats, download, your own folders."""
