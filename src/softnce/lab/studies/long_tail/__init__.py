"""Rare classes: what does the correction −log η do when classes are not balanced?

The paper subtracts log η from the scores in training, leaves it out afterwards, and notes that this "might introduce
additional bias"; its images are balanced, where the correction cancels. Here the training part is long-tailed (class k
of K keeps imbalance^(−k/(K−1)) of its samples) and the held-out and test parts are balanced. Candidates from the batch
turn up as often as their class, so a contrastive loss fits exp(s) ∝ p(y|x)/p(y). With the correction the model's scores
are then log p(y|x), as NLL's are; without it they are log p(x|y), which is what a balanced test asks for (logit
adjustment). Each contrastive loss is trained both ways, beside NLL and soft target cross-entropy, and every model is
also tested with its prior switched afterwards. The held-out part chooses epoch and learning rate.

The paper preset needs CIFAR-100 in the folder that SOFTNCE_DATA names; the quick one uses digits.
"""
