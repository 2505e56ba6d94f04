"""Six losses on scikit-learn's digits: accuracy, likelihood and calibration of one small network.

An MLP with two hidden layers is trained on a few hundred 8×8 digits, once with each loss. NLL and InfoNCE see the
labels; the soft losses see labels smoothed and mixed (MixUp), the same for all four. Only the loss differs: data,
initial weights, order of batches and mixing come from the seed. The rest of the digits is the test set. This is a
demonstration in seconds, not a benchmark: the learning rate is the same for all and was not tuned.
"""
