"""Virtual time around one server: events in order, rounds of an engine, and a server under load. It needs no scheduler."""
