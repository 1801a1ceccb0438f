"""A factory whose servers and scheduler a Ray cluster keeps (ROSA §3.5): Ray starts, moves and restarts them. Data stays on DDS."""
