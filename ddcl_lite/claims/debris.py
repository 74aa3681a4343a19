"""D21: what prototypes find in a catalogue of orbits."""
