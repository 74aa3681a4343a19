"""U5, U6 and U9."""
