"""The parts of local clusters: their arguments, processes and size."""
