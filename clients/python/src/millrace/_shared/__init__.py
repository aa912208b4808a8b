"""Objects that programs share under a name: locks, semaphores, variables, events, queues and topics."""
