"""The parts of which `Client` and `AsyncClient` are made, one group of methods each."""
