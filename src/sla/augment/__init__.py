"""Label-keeping augmentation of whole batches, policies and mixing, and their text form."""
