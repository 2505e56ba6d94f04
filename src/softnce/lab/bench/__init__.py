"""Time and memory of the losses compared with others: ``softnce bench``.

baselines   what the losses are measured against, used by the tests too; imports torch only
cases       every loss that is timed, on inputs they share
timing      interleaved rounds, medians and quartiles
memory      peak of a step's allocations, traced in a second process
measurement both, of every loss and size of a plan
scaling     exponents in N, M and K
exchange    bytes that ranks exchange in a step
limits      ratios that the losses should keep
tables      the result as text
figures     the result as pictures
update      time and memory of the parts of a recipe's update
run         all of it, from a plan to files
"""
