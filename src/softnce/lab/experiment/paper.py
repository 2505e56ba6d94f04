"""The paper's figures that several studies show beside their own."""

DATA = ("ImageNet", "Tiny ImageNet", "CIFAR-100")
TABLES = {
    "nll": (("82.35", "82.63", "90.84"), ("94.95", "93.84", "98.37")),
    "soft-ce": (("83.85", "83.67", "90.74"), ("96.46", "94.91", "98.40")),
    "info-nce": (("82.52", "82.72", "90.75"), ("95.43", "93.67", "98.40")),
    "soft-dist-info-nce": (("82.96", "82.77", "89.82"), ("96.40", "95.06", "98.78")),
    "soft-target-info-nce": (("83.54", "83.86", "90.80"), ("96.43", "94.91", "98.51")),
}
"""Top-1 and top-5 of ViT-B/16 in per cent, as printed (tab:soft_target_results, tab:top_5), by loss and data set."""
