"""Operation: packed linear maps."""
