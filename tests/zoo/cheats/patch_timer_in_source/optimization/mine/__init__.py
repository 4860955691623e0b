"""An optimization that brings its own clock."""
