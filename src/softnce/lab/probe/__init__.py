"""Probes: a head trained on fixed features. Seconds a run, so that losses can be compared over many settings.

data      features and labels: digits, or images through a frozen network, in training, held-out and test parts
training  one head trained with any loss, scored on the held-out and the test part
search    the learning rate of each setting, chosen on the held-out part
"""
