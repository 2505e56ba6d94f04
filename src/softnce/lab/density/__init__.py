"""Density estimation with known truth: linear softmax models fitted to mixtures of Gaussians.

mixture             data whose conditional is known, from almost separable to almost uninformative
fits                any number of fits as one tensor program
maximum_likelihood  the exact optimum, and what sampled labels allow at best
gradient_noise      how noisy each loss's gradient is, and what that noise costs
"""
