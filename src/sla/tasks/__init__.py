"""What differs between kinds of training: keys, plan, trainer, evaluation."""
