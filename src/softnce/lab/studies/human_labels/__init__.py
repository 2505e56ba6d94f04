"""People disagree: which losses learn their votes, and how many votes does it take?

CIFAR-10H holds about 51 people's votes on each of CIFAR-10's test images. A head on fixed features is trained on half
of the images, with 1, 3, 10 or all votes of each, and judged on images it has not seen: accuracy, and cross-entropy and
KL to the distribution of all their votes. NLL takes the majority's label; soft target cross-entropy and soft target
InfoNCE take the shares of the votes as they are; soft distribution InfoNCE draws one label from them in every step, and
averaged draws the mean of n labels. With one vote all targets are labels; look where the curves part.

The paper preset needs cifar10h/cifar10h.npz in the folder that SOFTNCE_DATA names. The quick one uses scikit-learn's
digits with simulated votes: nobody was asked.
"""
