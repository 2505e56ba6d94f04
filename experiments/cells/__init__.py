"""The paper's twenty cells and the laptop recipes: Lightning, DDP, exact resume."""
