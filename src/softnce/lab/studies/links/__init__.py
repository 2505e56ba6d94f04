"""Knowledge graphs: what does each loss learn about missing links, in what time, when entities are the classes?

(head, relation, ?) is a classification over 14,541 entities (FB15k-237) or 40,943 (WN18RR). The scores of ComplEx and
DistMult are features times a label table, and a question with several right answers is a soft target:

  full softmax with one label per triple ("1vsAll"), and with all right answers of a question ("KvsAll")
  InfoNCE with the batch's answers as candidates, and sampled softmax with log Q: one label per triple
  InfoNCE of the same triples grouped by question: its right answers are one soft target, and share one row of scores
  expected InfoNCE and soft target InfoNCE with all right answers of a question

Look for filtered mean reciprocal rank and hits@10 on the whole test split, both directions, ties by their mean rank,
and for processor time to reach a score on the validation split. The epoch is chosen on the validation split, and the
test split is ranked once, at the end of a final training. --search true first tries learning rates and weights of N3 on
the validation split. One run per core, each on one thread. The paper preset needs links/FB15k-237 and links/WN18RR
(train.txt, valid.txt, test.txt) in the folder that SOFTNCE_DATA names; the quick one generates a small graph.
"""
