"""One function per comparison table or sweep, shared by chapter, claim and test."""
