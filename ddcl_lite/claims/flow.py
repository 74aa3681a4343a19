"""U1, U2 and U16."""
