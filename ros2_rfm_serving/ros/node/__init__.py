"""Parts that every node shares: process, timers, parameters, name, diagnostics."""
