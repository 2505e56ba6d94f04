"""How soft targets change attraction and repulsion: the gradient analysis of the supplement, in curves.

One sample, cosine scores, and candidates that are smoothed labels. Shown are how strongly the true label and a wrong
one move the embedding, against their cosine: weak targets (true at 1, wrong at −1) are silent, strong ones (at 0) are
not; how a hard positive and a hard negative respond to the number of negatives; and the penalty that the split of the
loss puts on each class, against ε. Everything is softnce.dynamics in closed form; nothing is trained.
"""
