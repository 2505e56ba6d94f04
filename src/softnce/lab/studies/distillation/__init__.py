"""Teacher and student: which losses learn from a teacher's outputs, and how many classes of them are needed?

The paper leaves distillation to future work. The teacher is an ensemble of three-layer heads on all features of the
whole training part; its outputs are written to a file (softnce.teacher). The student is a linear head on a part of
the features and a tenth of the samples, so there is room to help. It learns from labels, or from the teacher's k
likeliest classes (1, 2, 5, all), where the mass of the others is given to the k (renormalise) or spread over all
classes, at teacher temperatures 1 and 2; with the five losses, and with means of n labels drawn from the teacher.
Hard losses take the teacher's first class. Look for what each loss gains over itself on labels, and at temperature 2.

The paper preset needs CIFAR-100 in the folder that SOFTNCE_DATA names; the quick one uses digits.
"""
