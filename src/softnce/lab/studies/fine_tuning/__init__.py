"""Pre-trained networks fine-tuned end to end with every loss, on text and on images: the paper's regime in small.

Text: MiniLM, a transformer of six layers, on the intents of Banking77 and CLINC150, with a linear head and with three
layers. Images: EfficientNet-Lite0, trained on ImageNet, on CIFAR-100 at 64 px with the paper's recipe scaled down. NLL
and InfoNCE see labels; the soft losses see the same labels smoothed by 0.1 and mixed: MixUp of sentence embeddings,
MixUp or CutMix of images. The learning rate of each loss is searched for on held-out data; the test set is only
reported.

Runs are ordered so that an interrupted study says as much as it can: Banking77 before CLINC150 before the three layers
before images; in each, the search, then seed after seed over all losses. The same command continues.

Text needs intents (Banking77 and CLINC150), images need cifar100, in the folder that the environment variable
SOFTNCE_DATA names. The quick preset fine-tunes MiniLM on generated requests.
"""
