"""Reference maths of the K3 text decoder in plain PyTorch, FP32 or FP64 by the dtype it is given.

Owns: what the model computes. Imports no kernel and no engine. Read by: tests and kernel cases.
`weights.load(folder)`, then `decoder.forward(weights, dims, ids)`.
"""
