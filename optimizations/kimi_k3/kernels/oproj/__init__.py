"""Operation: output projection and the prefix."""
