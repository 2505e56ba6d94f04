"""Teacher and student: which losses learn from a teacher's outputs, and how many of its classes do they need?

The paper leaves distillation to future work. The teacher is an ensemble of three-layer heads, trained on all
features of the whole training part; its outputs are written to a file (softnce.teacher). The student is a linear head
on some of the features and a tenth of the samples. It learns from labels, or from the teacher's k most probable classes
(1, 2, 5, all). The mass of the other classes goes to the k (renormalise) or is spread over all classes. Teacher
temperatures are 1 and 2. All losses are trained, and means of n labels drawn from the teacher; hard losses use the
teacher's first class. Compare the gain of each loss over its own result on labels, and the results at temperature 2.

The paper preset needs CIFAR-100 in the folder that SOFTNCE_DATA names; the quick preset uses digits.
"""
