"""People disagree: which losses learn from their votes, and how many votes are needed?

CIFAR-10H holds about 51 people's votes on each of CIFAR-10's test images. A head on fixed features is trained on half
of the images, with 1, 3, 10 or all votes of each, and evaluated on unseen images: accuracy, and cross-entropy and
KL to the distribution of all their votes. NLL uses the majority label; soft target cross-entropy and soft target
InfoNCE use the shares of the votes; soft distribution InfoNCE draws one label from them in every step, and averaged
draws use the mean of n labels. With one vote per image, all targets are labels.

The paper preset needs cifar10h/cifar10h.npz in the folder that SOFTNCE_DATA names. The quick preset uses
scikit-learn's digits with simulated votes.
"""
