"""Factory whose servers and scheduler run on a Ray cluster (ROSA §3.5): Ray starts, moves and restarts them. Data stays on DDS."""
