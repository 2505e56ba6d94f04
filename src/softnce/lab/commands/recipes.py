"""``softnce recipes``: list the recipes, or show one with every value filled in."""

from softnce.cli import refuse
from softnce.lab import recipes
from softnce.lab.recipes.recipe import AnyRecipe, GraphRecipe, Recipe

HELP = """usage: softnce recipes [NAME]

Without NAME, list the recipes with their most important values. With NAME, print that recipe as YAML with every value
filled in. Save it to a file, edit it, and run it with `softnce train FILE.yaml`.
"""

COLUMNS = (
    "recipe", "optimiser", "base lr", "lr", "batch", "epochs", "warm-up", "decay", "layer decay", "smoothing",
    "MixUp", "CutMix", "augment", "drop path",
)  # fmt: skip


def _row(name: str, recipe: AnyRecipe) -> list[str]:
    """The values of the paper's tables, as the run will use them; – where a recipe has no such value."""
    o, t, s = recipe.optimiser, recipe.targets, recipe.schedule
    values = (
        None if isinstance(recipe, GraphRecipe) else recipe.optimiser.base_lr,
        o.lr, o.batch, s.epochs, s.warmup_epochs, o.weight_decay,
        None if isinstance(recipe, GraphRecipe) else recipe.optimiser.layer_decay,
        t.smoothing,
        None if isinstance(recipe, GraphRecipe) else t.mixup,
        t.cutmix if isinstance(recipe, Recipe) else None,
    )  # fmt: skip
    drop_path = f"{recipe.model.drop_path:g}" if isinstance(recipe, Recipe) else "–"
    numbers = ("–" if value is None else f"{value:g}" for value in values)
    augment = getattr(recipe.data, "augment", "–")
    return [name, o.name, *numbers, augment, drop_path]


def main(argv: list[str]) -> None:
    if any(word in ("-h", "--help") for word in argv):
        print(HELP, end="")
        return
    if len(argv) > 1:
        refuse(f"softnce recipes: got {' '.join(argv)!r}, need at most one NAME")
    try:
        if argv:
            print(recipes.to_yaml(recipes.load(argv[0])), end="")
            return
        rows = [_row(name, recipes.load(name)) for name in recipes.names()]
    except ValueError as error:
        refuse(f"softnce recipes: {error}")
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    for cells in (COLUMNS, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
