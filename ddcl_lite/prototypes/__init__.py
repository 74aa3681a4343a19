"""The first paper's half: a bank of prototypes that reads tokens."""
