"""The states of tasks as far as a client knows them."""
