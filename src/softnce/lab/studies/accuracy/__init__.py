"""The losses on images: accuracy and calibration, beside the paper's table.

Two models, both far smaller than the paper's fine-tuned ViT-B/16: a head (three layers) on features of a frozen
EfficientNet-Lite0, which was trained on ImageNet; and a small residual network trained end to end from scratch. NLL and
InfoNCE see labels, the soft losses the same smoothed and mixed ones. The learning rate of each loss is searched for in
the paper's interval on a tenth of the training set, which also chooses the epoch; the test set is only reported.

The paper preset needs CIFAR-100 in the folder that the environment variable SOFTNCE_DATA names (train.npz and test.npz,
or the published files, in its folder cifar100). The quick one uses scikit-learn's digits and the head only.
"""
