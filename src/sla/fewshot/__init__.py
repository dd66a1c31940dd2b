"""Few-shot classification: a few labelled pictures of each of a few new things, then the next one."""
