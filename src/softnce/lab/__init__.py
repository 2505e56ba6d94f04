"""The laboratory: everything that trains and judges the losses. Needs ``softnce[lab]``."""
