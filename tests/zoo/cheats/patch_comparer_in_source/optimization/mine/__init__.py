"""An optimization that is always right."""
