"""Is the exact loss better? Soft target InfoNCE compared with continuous categorical and averaged draws.

Soft target InfoNCE is derived from draws of the continuous categorical distribution. It then uses the soft targets
themselves, because the draws were considered too expensive. Here the exact loss is trained, at concentrations κ from 1
(as derived) up, and also with means of n labels, which have an exact ratio too. Parts:

  training on digits (labels smoothed), and on a problem of 100 classes whose conditional p(y|x) is known, with that
  conditional as the soft target (as the derivation assumes) or with smoothed labels (as in practice);
  the noise of the gradient, and what a step costs;
  how much information a draw has about its target, in nats, as the number of classes grows;
  the normaliser's error and the sampler's proposals, compared with the method of the distribution's original authors.
"""
