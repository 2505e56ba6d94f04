"""Many trainings of one recipe: which (grid), how they are done (many, tune), and a table of their results (table)."""
