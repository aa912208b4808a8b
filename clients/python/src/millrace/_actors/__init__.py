"""Actors: objects that live in a process of their own on a worker."""
