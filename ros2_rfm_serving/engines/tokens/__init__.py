"""Autoregressive policies: action tokens, decoded one by one with a KV cache, or merged on a public context."""
