"""Images: data sets, transforms, models. Needs ``softnce[vision]``."""
