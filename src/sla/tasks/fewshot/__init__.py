"""Few-shot classification: a few labelled pictures of each of a few new classes, then the next one."""
