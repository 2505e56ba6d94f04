"""Running experiments: studies and their results, the search for a learning rate, comparisons over seeds, verdicts."""
