"""Computed numbers in sentences."""

import re


def prose(text: str) -> str:
    """Text written over several lines as one, with minus signs and percent signs that stay with their number."""
    return re.sub(r"(?<=\d) %", "\N{NO-BREAK SPACE}%", minus(" ".join(text.split())))


def minus(text: str) -> str:
    """Hyphens before digits as minus signs, except inside words and exponents."""
    return re.sub(r"(?<![\w.])-(?=[\d.])", "−", text)


def counted(number: int, noun: str) -> str:
    """The number with its noun: 1 seed, 2 seeds."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
