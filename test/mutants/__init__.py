"""`make mutants`: faults put into the brain and the server on purpose, one at a time. A test must notice each."""
