"""Training: the classifier, its run folder with checkpoints, evaluation and prediction."""
