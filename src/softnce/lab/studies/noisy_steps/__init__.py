"""Noisy steps on real data: does a contrast with the batch beat cross-entropy over all classes?

Study density finds that plain SGD with large steps estimates better with InfoNCE than with NLL: a batch holds some
classes too often, which pushes NLL's scores along the mean of the features, and InfoNCE counts the batch's classes.
Here the same is looked for on images: a linear model without bias on features as they are, not centred, trained on
labels by SGD with a constant learning rate, for several rates from small to too large. Look at the differences at the
best rate of each loss, which is what a user gets, and at the largest one, where steps are noisy.

The paper preset needs Tiny ImageNet in the folder that SOFTNCE_DATA names; the quick one uses scikit-learn's digits.
"""
