"""Data sets: images, graphs, votes, features of a frozen network; how batches are formed and mixed."""
