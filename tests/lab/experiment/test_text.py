from softnce.lab.experiment.text import counted, minus, prose


def test_words():
    assert prose("a\n   b  -3 %") == "a b −3\N{NO-BREAK SPACE}%"
    assert minus("1e-05 and x-2, [-0.5, +1]") == "1e-05 and x-2, [−0.5, +1]"
    assert counted(1, "seed") == "1 seed"
    assert counted(0, "seed") == "0 seeds"
