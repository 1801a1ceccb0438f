"""Support of openpi's websocket protocol, without a socket."""
