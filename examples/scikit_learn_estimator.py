"""scikit-learn: SoftLabelClassifier in a pipeline, a grid search and a calibration; on labels, then on soft labels.

It is a linear classifier, or a network with hidden layers, trained by any of the six losses, with scikit-learn's API.
"""

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from softnce.sklearn import SoftLabelClassifier


def main(epochs: int = 40) -> float:
    x, y = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.25, random_state=0)

    # Labels: which loss, which rate? As with any other estimator.
    classifier = SoftLabelClassifier(hidden_layer_sizes=(64,), max_epochs=epochs, random_state=0)
    search = GridSearchCV(
        make_pipeline(MinMaxScaler(), classifier),
        {"softlabelclassifier__loss": ["nll", "expected-info-nce"], "softlabelclassifier__learning_rate": [3e-3, 1e-2]},
        cv=3,
    ).fit(x, y)
    print(f"labels       {search.score(x_test, y_test):.1%}  {search.best_params_}")
    calibrated = CalibratedClassifierCV(search.best_estimator_, cv=3).fit(x, y)
    print(f"calibrated   {calibrated.score(x_test, y_test):.1%}")

    # Soft labels: a row of probabilities per sample, here of three annotators who confuse 3 and 8 in every third case.
    generator = np.random.default_rng(0)
    votes = np.zeros((len(y), 10))
    for _ in range(3):
        swapped = np.where(y == 3, 8, np.where(y == 8, 3, y))
        seen = np.where(generator.random(len(y)) < 1 / 3, swapped, y)
        votes[np.arange(len(y)), seen] += 1 / 3
    model = make_pipeline(MinMaxScaler(), classifier).fit(x, votes)
    accuracy = float(model.score(x_test, y_test))
    print(f"soft labels  {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
