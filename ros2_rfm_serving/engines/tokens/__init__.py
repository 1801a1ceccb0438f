"""Autoregressive policies: action tokens, decoded one by one with a key/value cache, or merged on a public context."""
