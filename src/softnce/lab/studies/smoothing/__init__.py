"""How much label smoothing matters: accuracy and calibration against ε, for both soft target losses.

The paper finds that soft target InfoNCE depends less on ε than soft target cross-entropy. There is a reason that can be
proved: to soft target InfoNCE, smoothing by ε at temperature τ with noise η is the same loss as no smoothing at all at
temperature τ/(1−ε) with noise η^(1−ε). ε only rescales the scores. Here a head on fixed features is trained over ε with
both losses, and once more without smoothing at the temperature that the identity gives: the curves must coincide. The
identity is also checked on the trained scores, with skewed noise, in values and gradients.

The paper preset needs CIFAR-100 in the folder that the environment variable SOFTNCE_DATA names; the quick one uses
scikit-learn's digits.
"""
