"""One kind of run: configuration, loop, checkpoints, metrics, folder."""
