"""Test support: the modules of cuDF that have more than its public names."""
