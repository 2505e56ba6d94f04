"""Does InfoNCE estimate parameters better than NLL? The paper's first figure and its cause.

Linear softmax models are fitted to mixtures of Gaussians whose true conditional is known, from orthogonal modes (0 %
alignment) to almost parallel ones (80 %, an angle of 18°), and scored by KL(p‖q). Five parts:

  fits at the paper's protocol (Adam, 1e-3, batches of 1024, up to 500 epochs) and with noisier steps (SGD, 0.1);
  the three soft losses, with the true conditional as soft target or with smoothed labels;
  the exact maximum-likelihood fit, and the statistical limit (K-1)d/(2n) of sampled labels;
  a grid of optimisers, learning rates and batch sizes;
  the gradient noise of each loss at the optimum, and the error it predicts.

A fit stops early when the loss over all training samples has not fallen by 1e-5 nats for 20 epochs.
"""
