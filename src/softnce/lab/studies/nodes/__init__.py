"""Six losses on the nodes of graphs: cell types in generated tissue, papers in citation graphs.

The paper's benchmark, CellTypeGraph, has to be downloaded; `softnce train celltypegraph/nll` and kin train on it. Here
specimens are grown in its layout and take its place: DeeperGCN, five folds, the benchmark's metrics, each loss with the
same folds, initial weights, batches and dropout. The epoch is chosen both ways: as published, on the specimens that are
then scored, and honestly, on others. Results compare the losses with each other and say nothing about the benchmark's
numbers. Besides, Cora and CiteSeer on their public split, with the two-layer GCN and a shallow DeeperGCN; their raw
files are looked for in $SOFTNCE_DATA/planetoid and left out where they are not there.
"""
