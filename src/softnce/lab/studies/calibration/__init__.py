"""Is soft target InfoNCE better calibrated? Reliability of six losses, before and after temperature scaling.

The paper has three cases: smoothing only on Tiny ImageNet (better than soft target cross-entropy), all augmentations on
CIFAR-100 (far better), all augmentations on Tiny ImageNet (slightly worse). Here each case is kept apart, with a head
on fixed features: calibration error in bins of equal width and of equal mass, by class, likelihood and Brier score, and
all of it once more after one temperature is fitted on held-out data. On features "all augmentations" means smoothing
and MixUp; NLL and InfoNCE are trained on labels.

The paper preset needs CIFAR-100 and Tiny ImageNet in the folder that the environment variable SOFTNCE_DATA names; the
quick one uses scikit-learn's digits.
"""
