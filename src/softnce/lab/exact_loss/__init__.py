"""The loss that soft target InfoNCE is derived from, drawn exactly: what it costs and what it buys.

original      the method of the continuous categorical's original authors, and exact arithmetic, to compare with
distribution  how much a draw says, how exact the normaliser is, how many proposals a draw takes
training      problems to train on, the losses compared, the noise of their gradients, the cost of a step
page          figures, tables and sentences of the study ``exact-loss``
"""
