"""A client's session with the scheduler: its lease, what it sends, and what it receives."""
