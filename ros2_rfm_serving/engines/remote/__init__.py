"""A policy behind openpi's websocket protocol."""
