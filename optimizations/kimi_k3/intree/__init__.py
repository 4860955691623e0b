"""The decode path over vLLM's own Kimi K3 on a GPU: its model, weights and caches, our launches."""
