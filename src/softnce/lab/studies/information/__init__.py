"""How much information do the losses find? Their bounds and the exact mutual information, over ε and M.

Z and Y are discrete with a known table p(z, y), so I(Z;Y), the information of the labels, and I_ε(Z;Y), that of labels
smoothed with their own marginal, are finite sums. Critics are trained on samples to identify a label among M
candidates:

  a free score for every pair (z, y), which can be exact, and z·y with embeddings of a few dimensions, which cannot;
  by soft distribution InfoNCE, whose labels are drawn from the smoothed ones, and by soft target InfoNCE.

What to check: no bound exceeds the true value; no bound exceeds log M; which information each of the two losses bounds.

"""
