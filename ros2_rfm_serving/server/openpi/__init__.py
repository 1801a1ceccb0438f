"""openpi's websocket protocol, without a socket."""
