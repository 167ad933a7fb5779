"""The benchmarks run and write what they say; what they measure is asserted nowhere."""

from benchmarks import fast_slow


def test_fast_slow(tmp_path, capsys):
    out = tmp_path / "FAST_SLOW.md"
    arguments = ["--batch", "2", "--steps", "2", "--seconds", "0.1", "--out", str(out)]
    assert fast_slow.main(arguments) == 0
    text = out.read_text()
    assert text == capsys.readouterr().out
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| fs_")]
    assert [(row[1].strip(), row[2].strip()) for row in rows] == [
        ("fs_rum", "11.18M"),
        ("fs_lstm_2", "7.16M"),
    ]
    assert "fs_rum / fs_lstm_2, per multiply-add: " in text
