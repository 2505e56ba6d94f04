"""How soft targets change attraction and repulsion: curves for the gradient analysis of the supplement.

One sample, cosine scores, and candidates that are smoothed labels. The curves show how strongly the true
label and a wrong one move the embedding, against their cosine (weak targets, true at 1 or wrong at −1, have no effect;
strong ones, at 0, do); the response of a hard positive and a hard negative to the number of negatives; and the penalty
that the split of the loss puts on each class, against ε. softnce.dynamics has all of it in closed form; nothing is
trained.
"""
