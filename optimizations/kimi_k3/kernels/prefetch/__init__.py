"""Operation: bringing the next operation's weights into L2."""
