"""Operation: mixing over depth."""
