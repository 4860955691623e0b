"""Kimi K3 decode for vLLM: reference maths, out-of-tree model and the latency-specialised path.

Importing this package loads nothing else; see README.md for the file map.
"""
