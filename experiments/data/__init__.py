"""Data sets of the experiments: reading, splitting and mixing. Nothing is downloaded unless asked for."""
