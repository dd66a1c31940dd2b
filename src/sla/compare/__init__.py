"""Several runs on the same images."""
