"""Operation: Kimi delta attention."""
