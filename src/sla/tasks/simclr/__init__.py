"""The task `simclr`: a backbone trained on images without labels, for other runs to start from."""
