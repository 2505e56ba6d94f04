"""A linear head or three layers, scores normalised or not: what does each loss gain?

The paper reports that a three-layer head gains soft target InfoNCE more than soft target cross-entropy, and that with
a linear head it falls slightly behind. In the authors' code, not in the paper, a BatchNorm without parameters follows
the scores. Here every loss trains all four heads on fixed features, at its own learning rate, chosen on a held-out
part; gains are paired by seed. Look at the difference of the gains, and at what normalised scores cost.

The paper preset needs CIFAR-100 and Tiny ImageNet in the folder that SOFTNCE_DATA names; the quick one uses digits.
"""
