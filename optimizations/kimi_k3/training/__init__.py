"""Training of k3-nano on the synthetic eval tasks, in pure PyTorch.

Owns: the differentiable batched decoder, its optimiser, the rows it learns from, the script.
`python -m kimi_k3.training.train --help`. Nothing that serves the model imports this room.
"""
