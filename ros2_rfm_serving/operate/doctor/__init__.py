"""What this machine has, what is missing for which executable, and how to get it. `rfm doctor` prints it."""
