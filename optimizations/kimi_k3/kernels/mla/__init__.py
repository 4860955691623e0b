"""Operation: multi-head latent attention."""
