"""skorch and scikit-learn: a loss of softnce as criterion, and its temperature in a grid search.

softnce.sklearn.SoftLabelClassifier is the shorter way if a linear or a small network is enough.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from skorch import NeuralNetClassifier
from torch import nn

from softnce import InfoNCE


def main(epochs: int = 10) -> float:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    x, x_test, y, y_test = train_test_split(images, labels, test_size=0.25, random_state=0)

    torch.manual_seed(0)
    net = NeuralNetClassifier(
        nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
        criterion=InfoNCE,  # skorch makes it; criterion__* are its arguments
        criterion__temperature=1.0,
        # skorch knows that nn.CrossEntropyLoss wants logits, but not that InfoNCE does: say what turns them into p.
        predict_nonlinearity=lambda logits: logits.softmax(1),
        optimizer=torch.optim.Adam,
        lr=3e-3,
        max_epochs=epochs,
        batch_size=128,
        train_split=None,
        verbose=0,
    )
    search = GridSearchCV(net, {"criterion__temperature": [0.5, 1.0, 2.0]}, cv=3, scoring="accuracy")
    search.fit(x, y)
    accuracy = float(search.score(x_test, y_test))
    print(f"best {search.best_params_}, accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
