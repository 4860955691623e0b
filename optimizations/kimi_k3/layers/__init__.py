"""Stock layers of the K3 decoder on vLLM's parallel layers, one file per kind of layer."""
