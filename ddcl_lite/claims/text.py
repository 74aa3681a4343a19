"""D20 and D22: what a bank of prototypes adds as a readout and as a way to cluster texts."""
