"""Device code of the routed experts."""
