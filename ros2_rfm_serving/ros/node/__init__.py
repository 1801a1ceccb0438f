"""What every node is made of: its process, timers, parameters, name, diagnostics."""
