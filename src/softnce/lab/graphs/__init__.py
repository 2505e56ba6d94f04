"""Node classification: the CellTypeGraph benchmark, its models and its metrics (needs ``softnce[graph]``).

    layout          the benchmark's file layout: features with their transforms, classes
    celltypegraph   files of that layout -> PyG graphs, cached
    folds           the published five folds, and an honest variant
    tissue          tissue-like specimens of our own in the same layout
    tasks           CellTypeGraph, Planetoid or any PyG node dataset as one train/selection/test triple
    models          DeeperGCN and the two-layer GCN, and the network a recipe describes
    augment         training-time transforms of graphs
    metrics         accuracy per specimen as the benchmark counts it, choice of the epoch
    figures         confusion matrix
    datamodule      a recipe's graphs in batches for the classifier
    scores          what `softnce train` and `softnce evaluate` measure
    course          a training watched epoch by epoch
    page            what `softnce study nodes` shows
    cost            time and memory of a training step

``docs/graphs.md`` tells the story. Modules are imported one by one: PyTorch Geometric takes seconds to load.
"""
