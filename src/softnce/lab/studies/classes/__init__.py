"""Ten thousand to a million classes: what does a loss cost, and what does it learn, as classes grow?

A generated problem whose best possible accuracy is known: a class is a point in space, a sample is its point with
Gaussian noise, seen through a fixed invertible network; so the nearest point is the best guess, and its accuracy is
measured beside the models'. Every model is a small network and a table of label embeddings, trained on MixUp batches,
that is on soft targets of two pairs:

  soft target InfoNCE from the table, against the batch's targets, or against more targets drawn at random
  sampled softmax with log Q correction, the classes' usual shortcut
  soft target cross-entropy over all classes, where that can be afforded

Look for accuracy against time of training and against peak memory. Each loss is trained with every learning rate of
the table in --lrs and shown with its best. Runs are made one after another, on a machine that should be quiet.
"""
