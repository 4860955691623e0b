"""fasttrack: evidence that a specialised decode path is correct, kept its features and is faster.

This package root owns the version and the few names meant for callers in Python; everything else
is reached through its own module (`fasttrack.schema` for the nouns, `fasttrack.cli` for the
commands). It loads neither torch nor vLLM, so that verifying a bundle costs a moment, not a GPU.
"""

from fasttrack.errors import FasttrackError

__all__ = ["FasttrackError", "__version__"]

__version__ = "0.1.0"
