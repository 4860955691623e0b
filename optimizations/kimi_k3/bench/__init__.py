"""Benchmarks of the GPU kernels: for authors, not evidence. Run with `python -m kimi_k3.bench`."""
