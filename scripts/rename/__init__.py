"""Renames names of the package from a table, by what they are and not by how they are spelt.

    python -m scripts.rename --room robot --dry-run     # what would change, and what has to be checked by hand
    python -m scripts.rename --room robot               # changes the working tree; then: make lint, the tests, one commit
    python -m scripts.rename --series types factory server+robot   # room by room, one commit each, from one build of the types
    python -m scripts.rename --counts                   # entries per room; --recorded: those whose names recordings hold

The table is `scripts/renames.tsv` (see `table.py`). mypy says of which class an object is, so a method is renamed with all that
overrides it, and no other of the same name. Afterwards the tool proves that each file differs in names alone: its tree is that of
before with the planned names put in, and each name is bound in the same scope as before. Run it with a clean working tree.

To rename a room:

1. Write a line for each name that `python -m test.language --list banned --room ROOM` prints: one for each class, function,
   parameter and variable (`local`) that has it. An overridden method needs one line, and so does a parameter of it. Take the new
   name from docs/glossary.md; a name that users, recordings or messages have stays.
2. Run it with `--dry-run`. The first build of the types takes minutes; later ones of the same sources are read from
   `build/rename/`. `NOT APPLIED` lists what stands in the way: a new name that is taken, that hides a builtin or another name, or
   a key that users write. A library's base class may have the new name, too, which the tool does not see: rclpy's `Node` has
   `_subscriptions`.
3. Read `Renamed by the name alone` and `To check`: attributes of objects without a type, strings that name attributes (`setattr`
   in a loop, `__dict__`, `__getstate__`, tables of tests), and names in prose. A line of the kind `text` renames in strings and
   comments of one file; code of an object without a type is changed by hand.
4. Apply it, run the linters and the tests of the room, commit, and remove the room's lines from the table.
"""
