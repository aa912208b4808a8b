"""Connections to schedulers and workers: addresses, channels, calls, and operations that wait."""
