"""Counts of what docs/glossary.md asks of names and docstrings, and of the size of the package: `python -m test.language`."""
