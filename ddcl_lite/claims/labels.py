"""U3 and U4."""
