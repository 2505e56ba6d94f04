"""Images of your own: a folder per class; a trained classifier; predictions.

    python examples/image_folder.py photos/ new1.jpg new2.jpg        photos/cat/….jpg, photos/dog/….jpg

Without arguments scikit-learn's digits are written as such folders. With labels, few classes and a short training,
plain cross-entropy without MixUp is best (see the README).
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

from softnce import NLL

SIZE = 16
"""Pixels of a side; 224 for photographs."""


def read(path: Path) -> torch.Tensor:
    image = Image.open(path).convert("RGB").resize((SIZE, SIZE))
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1) / 255


def is_image(path: Path) -> bool:
    """Hidden files, such as ``.DS_Store``, are none; neither are files with another ending."""
    return not path.name.startswith(".") and path.suffix.lower() in Image.registered_extensions()


def demonstration() -> tuple[Path, list[Path]]:
    """A folder of 600 digits by class, and ten others."""
    root, digits = Path(tempfile.mkdtemp()), load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images[:610], digits.target[:610], strict=True)):
        path = root / ("new" if number >= 600 else f"digits/{label}") / f"{label}-{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15).astype(np.uint8)).save(path)
    return root / "digits", sorted((root / "new").iterdir())


def main(folder: Path | None = None, new: Sequence[Path] = (), epochs: int = 10) -> list[str]:
    if folder is None:
        folder, new = demonstration()
    files = sorted(filter(is_image, folder.glob("[!.]*/*")))
    if not files:
        sys.exit(f"{folder}: need a folder of images per class, such as {folder / 'cat' / '1.jpg'}")
    classes = sorted({path.parent.name for path in files})
    images = torch.stack([read(path) for path in files])
    labels = torch.tensor([classes.index(path.parent.name) for path in files])

    torch.manual_seed(0)
    model = nn.Sequential(  # or timm.create_model("resnet18", pretrained=True, num_classes=len(classes))
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * (SIZE // 4) ** 2, len(classes)),
    )  # fmt: skip
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    criterion = NLL()
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(64):
            optimiser.zero_grad()
            criterion(model(images[rows]), labels[rows]).backward()
            optimiser.step()

    print(f"trained on {len(files)} images of {len(classes)} classes: {', '.join(classes)}")
    if not new:
        print("nothing to classify: name images after the folder")
        return []

    with torch.no_grad():
        probabilities = model(torch.stack([read(path) for path in new])).softmax(1)
    found = [classes[k] for k in probabilities.argmax(1).tolist()]
    for path, name, p in zip(new, found, probabilities.amax(1).tolist(), strict=True):
        print(f"{path.name}: {name} ({p:.0%})")
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(path) for path in sys.argv[2:]]) if len(sys.argv) > 1 else main()
