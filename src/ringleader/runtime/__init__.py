"""The run time: communicators, their start-up, and arrays."""
