import subprocess
import sys

from softnce.lab.experiment.reservations import Reservations

HOLD = """
import sys, time
from pathlib import Path
from softnce.lab.experiment.reservations import Reservations
reservations = Reservations(Path(sys.argv[1]))
print(reservations.take("run"), flush=True)
time.sleep(100)
"""


def test_a_run_is_taken_once(tmp_path):
    with Reservations(tmp_path) as ours, Reservations(tmp_path) as theirs:
        assert ours.take("a")
        assert not ours.take("a")
        assert not theirs.take("a")
        assert theirs.take("b")
        ours.release("a")
        assert theirs.take("a")
        assert (ours.held, theirs.held) == ([], ["b", "a"])
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_holds_nothing(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with holder, Reservations(tmp_path) as ours:
        assert holder.stdout.readline() == "True\n"
        assert not ours.take("run")
        holder.kill()
        holder.wait()
        assert ours.take("run")
