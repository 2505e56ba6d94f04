"""What does the exact loss buy? Soft target InfoNCE beside continuous categorical and averaged draws.

Soft target InfoNCE is derived from draws of the continuous categorical distribution and then uses the soft targets
themselves, because the draws were thought too costly. Here the exact loss is trained, at concentrations κ from 1 (the
derivation's) up, and beside it means of n labels, which have an exact ratio too. Parts:

  training on digits (labels smoothed), and on a problem of 100 classes whose conditional p(y|x) is known, with that
  conditional as the soft target (what the derivation assumes) or with smoothed labels (what one has);
  the noise of the gradient, and what a step costs;
  how much a draw says about its target, in nats, as the number of classes grows;
  the normaliser's error and the sampler's proposals beside those of the distribution's original authors.
"""
