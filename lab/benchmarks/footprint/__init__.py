"""`rfm bench footprint`: memory, file size, start-up and first chunk of models by the precision of their weights."""
