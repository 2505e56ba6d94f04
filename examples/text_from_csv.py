"""Text of your own: a CSV with columns text,label or text,annotator,label; a trained classifier; predictions.

    python examples/text_from_csv.py train.csv "a sentence" "another one"

Without arguments a small CSV of votes is written and used. If several people labelled a text, the shares of their votes
are its target; a person who labelled it twice has one vote. With few classes, soft target cross-entropy is hard to beat
(see the README).
"""

import csv
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from sklearn.feature_extraction.text import TfidfVectorizer

from softnce import SoftTargetCrossEntropy, SoftTargets


def read(path: Path) -> tuple[list[str], SoftTargets, list[str]]:
    """Texts (N), their targets, and the names of the K classes. An annotator has one vote per text."""
    with path.open(newline="", encoding="utf-8-sig") as file:  # with or without a byte order mark
        rows = list(csv.DictReader(file))
    if not rows or not {"text", "label"} <= rows[0].keys():
        sys.exit(f"{path}: need columns text and label, and a row; got {list(rows[0]) if rows else 'no row'}")
    people = [row.get("annotator") or number for number, row in enumerate(rows)]  # unnamed ones are different people
    found = SoftTargets.from_annotations([row["text"] for row in rows], people, [row["label"] for row in rows])
    return list(found.samples), found.targets, list(found.classes)


def demonstration() -> Path:
    """Three annotators of sixty reviews; on the lukewarm ones they disagree."""
    openings = ("honestly", "overall", "in short", "well", "for me")
    opinions = {"superb": "+++", "lovely": "+++", "fine": "++-", "bland": "+--", "dreadful": "---", "awful": "---"}
    path = Path(tempfile.mkdtemp()) / "reviews.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "annotator", "label"])
        for opening in openings:
            for thing in ("soup", "service"):
                for word, votes in opinions.items():
                    for annotator, vote in zip(("ann", "bob", "cem"), votes, strict=True):
                        label = "positive" if vote == "+" else "negative"
                        writer.writerow([f"{opening}, the {thing} was {word}", annotator, label])
    return path


def main(path: Path | None = None, new: Sequence[str] = (), epochs: int = 100) -> dict[str, list[float]]:
    if path is None:
        path, new = demonstration(), new or ("the soup was superb", "a bland soup")
    texts, targets, classes = read(path)
    vectorizer = TfidfVectorizer()  # or a sentence encoder: any features (N, d)
    features = torch.from_numpy(vectorizer.fit_transform(texts).toarray()).float()

    torch.manual_seed(0)
    model = torch.nn.Linear(features.shape[1], len(classes))
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1)
    criterion = SoftTargetCrossEntropy()
    for _ in range(epochs):
        for rows in torch.randperm(len(texts)).split(64):
            optimiser.zero_grad()
            criterion(model(features[rows]), targets[rows]).backward()
            optimiser.step()

    print(f"trained on {len(texts)} texts of {len(classes)} classes: {', '.join(classes)}")
    if not new:
        print("nothing to classify: name sentences after the CSV")
        return {}

    with torch.no_grad():
        probabilities = model(torch.from_numpy(vectorizer.transform(new).toarray()).float()).softmax(1)
    for text, row in zip(new, probabilities, strict=True):
        print(f"{text}: " + ", ".join(f"{name} {p:.0%}" for name, p in zip(classes, row.tolist(), strict=True)))
    return dict(zip(classes, probabilities.T.tolist(), strict=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:]) if len(sys.argv) > 1 else main()
