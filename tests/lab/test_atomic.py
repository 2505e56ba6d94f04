import pytest

from softnce.lab.atomic import replacing, write_text


@pytest.mark.parametrize("options", [{}, {"shared": True}, {"durable": True}])
def test_a_file_is_whole_or_as_it_was(tmp_path, options):
    path = tmp_path / "new" / "file.txt"
    with replacing(path, **options) as partial:
        partial.write_text("one")
        assert not path.exists()
    assert path.read_text() == "one"
    with pytest.raises(ZeroDivisionError), replacing(path, **options) as partial:
        _ = partial.write_text("half of tw") // 0
    assert path.read_text() == "one"
    assert list(path.parent.iterdir()) == [path]


def test_what_a_killed_process_left_is_written_over(tmp_path):
    (tmp_path / "file.txt.partial").write_text("half")
    write_text(tmp_path / "file.txt", "η")
    assert (tmp_path / "file.txt").read_text(encoding="utf-8") == "η"
    assert len(list(tmp_path.iterdir())) == 1
