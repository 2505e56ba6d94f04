"""Text of your own: a CSV with columns text,label or text,annotator,label; a trained classifier; predictions.

    python examples/text_from_csv.py train.csv "a sentence" "another one"

Without arguments a small CSV of votes is written and used. If several people labelled a text, the shares of their votes
are its target. With few classes, soft target cross-entropy is hard to beat (see the README).
"""

import csv
import sys
import tempfile
from pathlib import Path

import torch
from sklearn.feature_extraction.text import TfidfVectorizer

from softnce import SoftTargetCrossEntropy, SoftTargets


def read(path: Path) -> tuple[list[str], torch.Tensor, list[str]]:
    """Texts (N), votes (N, K), and the names of the K classes."""
    with path.open(newline="", encoding="utf-8-sig") as file:  # with or without a byte order mark
        rows = [(row["text"], row["label"]) for row in csv.DictReader(file)]
    texts, classes = list(dict.fromkeys(text for text, _ in rows)), sorted({label for _, label in rows})
    votes = torch.zeros(len(texts), len(classes))
    place = {text: number for number, text in enumerate(texts)}
    for text, label in rows:
        votes[place[text], classes.index(label)] += 1
    return texts, votes, classes


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


def main(path: Path | None = None, new: tuple[str, ...] = ("the soup was superb", "a bland soup"), epochs: int = 100):
    texts, votes, classes = read(path or demonstration())
    vectorizer = TfidfVectorizer()  # or a sentence encoder: any features (N, d)
    features = torch.from_numpy(vectorizer.fit_transform(texts).toarray()).float()
    targets = SoftTargets.from_votes(votes, len(classes))

    torch.manual_seed(0)
    model = torch.nn.Linear(features.shape[1], len(classes))
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1)
    criterion = SoftTargetCrossEntropy()
    for _ in range(epochs):
        for rows in torch.randperm(len(texts)).split(64):
            optimiser.zero_grad()
            criterion(model(features[rows]), targets[rows]).backward()
            optimiser.step()

    with torch.no_grad():
        probabilities = model(torch.from_numpy(vectorizer.transform(new).toarray()).float()).softmax(1)
    for text, row in zip(new, probabilities, strict=True):
        print(f"{text}: " + ", ".join(f"{name} {p:.0%}" for name, p in zip(classes, row.tolist(), strict=True)))
    return dict(zip(classes, probabilities.T.tolist(), strict=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]), tuple(sys.argv[2:])) if len(sys.argv) > 2 else main()
