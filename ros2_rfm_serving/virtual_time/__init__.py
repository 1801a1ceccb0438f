"""Virtual time around one server: an event queue, rounds of an engine, and a server under load. It needs no scheduler."""
