"""Small batches: soft target InfoNCE against cross-entropy, with candidates from the batch and from elsewhere.

Soft target InfoNCE contrasts a target with the other targets of its batch, so a small batch leaves it few candidates,
and the paper reports a drop. Candidates need not come from the batch. Here a head on fixed features is trained at batch
sizes 4 to 1024 with soft target cross-entropy, and with soft target InfoNCE whose candidates are (1) the batch; (2) M
sampled soft targets, mixed and smoothed like the training targets; (3) the batch and the M targets remembered from
before it; (4) the batch and the K plain labels ("vertices"; those alone are cross-entropy). Expected InfoNCE is trained
beside it, with its default of m = K further candidates from η in expectation and with none (m = 0), and tested for
equivalence on further seeds.

The learning rate of each is searched at every batch size on held-out data, for one seed; where expected InfoNCE and
cross-entropy are tested at the small batch size, for three. That was decided after a first test there, at the rate of
one seed, had failed; its runs are kept and reported beside the second. One batch size gets many seeds and a test of
equivalence (two one-sided tests); there the number of sampled candidates is varied, and how strongly they are mixed.
How strongly was decided on those seeds, so the test is repeated on seeds that had no part in the decision.

The paper preset needs CIFAR-100 in the folder that the environment variable SOFTNCE_DATA names; the quick one uses
scikit-learn's digits.
"""
