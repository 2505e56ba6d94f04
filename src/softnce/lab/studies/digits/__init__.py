"""Six losses on scikit-learn's digits: accuracy, likelihood and calibration of one small network.

An MLP with two hidden layers is trained on a few hundred 8×8 digits, once with each loss. NLL and InfoNCE are trained
on labels; the four soft losses on the same smoothed and mixed (MixUp) labels. Only the loss differs: data, initial
weights, order of batches and mixing come from the seed. The other digits are the test set. This is a demonstration that
takes seconds, not a benchmark: all losses use the same learning rate, which was not tuned.
"""
