"""Decode kernels: what one specialised step computes, and how it is compiled.

`<op>/portable.py` is the maths of an operation in PyTorch, `<op>/prepared.py` packs its weights,
`units` joins operations into the functions that are compiled, `compiler` builds and loads them.
Imports neither an engine nor `kimi_k3.runtime`.
"""
