"""`python build.py`: compiles, on one thread."""

from __future__ import annotations


def main() -> None:
    """Build."""
    import torch

    torch.set_num_threads(1)


if __name__ == "__main__":
    main()
