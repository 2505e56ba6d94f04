"""The losses on images: accuracy and calibration, beside the paper's table.

Two models, both far smaller than the paper's fine-tuned ViT-B/16: a head (three layers) on features of a frozen
EfficientNet-Lite0, which was trained on ImageNet; and a small residual network trained end to end from scratch. NLL and
InfoNCE are trained on labels, the soft losses on the same labels, smoothed and mixed. A tenth of the training set is
held out. It selects the learning rate of each loss, within the paper's interval, and the epoch. The test set is only
reported.

The paper preset needs CIFAR-100 in the folder that the environment variable SOFTNCE_DATA names (train.npz and test.npz,
or the published files, in its folder cifar100). The quick preset uses scikit-learn's digits and the head only.

"""
