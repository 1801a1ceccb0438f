"""Renames names of the package from a table, by what they are and not by how they are spelt.

    python -m scripts.rename --room robot --dry-run     # what would change, and what has to be checked by hand
    python -m scripts.rename --room robot               # changes the working tree; then: make lint, the tests, one commit
    python -m scripts.rename --series types factory server+robot   # room by room, one commit each, from one build of the types
    python -m scripts.rename --counts                   # entries per room; --recorded: those whose names recordings hold

The table is `scripts/renames.tsv` (see `table.py`). mypy says of which class an object is, so a method is renamed with all that
overrides it, and no other of the same name. Afterwards the tool proves that each file differs in names alone: its tree is that of
before with the planned names put in, and each name is bound in the same scope as before. Run it with a clean working tree.
"""
