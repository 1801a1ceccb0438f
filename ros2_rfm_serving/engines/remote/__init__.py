"""Policies behind openpi's websocket protocol."""
