"""The bytes of objects on their way between a client and workers."""
