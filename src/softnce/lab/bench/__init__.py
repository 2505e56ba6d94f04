"""Time and memory of the losses beside their peers: ``softnce bench``.

baselines   what the losses are measured against, used by the tests too; imports torch only
cases       every loss that is timed, on inputs they share
timing      interleaved runs, medians and quartiles
memory      peak of a step's allocations, traced in a fresh process
scaling     exponents in N, M and K
exchange    bytes that ranks send each other in a step
limits      what the losses are held to
tables      the result as text
figures     the result as pictures
command     the command line
"""


def main(argv: list[str]) -> None:
    """The command ``softnce bench``."""
    from softnce.lab.bench import command

    command.main(argv)
