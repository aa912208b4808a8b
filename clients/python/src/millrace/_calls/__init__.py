"""Requests of clients to the scheduler and to workers, apart from tasks."""
