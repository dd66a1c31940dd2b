"""Which images, in which order, with which random numbers."""
