"""What of a recipe may change while a run is continued."""

from softnce.lab.configuration import dotted, to_mapping
from softnce.lab.recipes.recipe import AnyRecipe

FREE = {"data.dir", "data.workers", "data.cache", "data.download", "data.corrupt"}
"""May be set anew, as may everything in ``compute``: where data are, and speed."""
EXTENDS = {"schedule.epochs", "schedule.max_steps"}
"""May become more. −1 steps are all of them."""


def changes(before: AnyRecipe, now: AnyRecipe) -> list[str]:
    """Why a run of ``before`` cannot be continued as one of ``now``, one entry per value; [] if it can.

    More epochs or steps extend a run, fewer are another recipe.
    """
    old, new = dotted(to_mapping(before)), dotted(to_mapping(now))
    return [
        f"{name} was {old.get(name)}, is {value}"
        for name, value in sorted(new.items())
        if old.get(name) != value and name not in FREE and not name.startswith("compute.")
        if name not in EXTENDS or 0 <= value < old[name] or old[name] < 0
    ]
