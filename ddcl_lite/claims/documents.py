"""D19: the decomposition at every level of a stack, and at every head."""
