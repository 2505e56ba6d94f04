"""Keras 3 on the torch backend: a loss of softnce in model.compile.

    KERAS_BACKEND=torch python examples/keras_on_torch.py

Keras calls a loss with (y_true, y_pred); here y_true are probabilities, because Keras hands over dense targets.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")  # before keras is imported

import keras
import numpy as np
from sklearn.datasets import load_digits

import softnce


def main(epochs: int = 10) -> float:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    # Label smoothing, as an example of soft targets.
    targets = (0.9 * np.eye(10)[labels] + 0.1 / 10).astype(np.float32)

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
    criterion = softnce.ExpectedInfoNCE()
    model.compile(optimizer=keras.optimizers.Adam(3e-3), loss=lambda y_true, y_pred: criterion(y_pred, y_true))

    # Before it trains, Keras tries the loss on a made-up batch whose rows do not sum to 1. Let it pass, and keep every
    # other check.
    with softnce.set_validation(True, sums=False):
        model.fit(images[:1400], targets[:1400], batch_size=128, epochs=epochs, verbose=0)
    accuracy = float((model.predict(images[1400:], verbose=0).argmax(1) == labels[1400:]).mean())
    print(f"accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
