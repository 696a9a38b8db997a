"""Log folders: complete lines only, one writer, one run."""

import pytest
from tiny_sweep import write_config

from evaluation.__main__ import main
from evaluation.logs import joined, keep_lines, only_run, whole_lines


def test_cut_lines_are_dropped(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b'{"a": 1}\n{"b": 2}\n{"c"')
    assert whole_lines(path) == 2
    keep_lines(path, 1)
    assert path.read_bytes() == b'{"a": 1}\n'
    path.write_bytes(b'{"a": 1}\n{"b": \n{"c": 2}\n')
    assert whole_lines(path) == 1
    assert whole_lines(tmp_path / "none") == 0


def test_both_circumstances_of_a_log_made_in_parts_are_told():
    first, second = ({"versions": {"torch": version}, "device": "cpu"} for version in ("2.12", "2.13"))
    both = {"versions": {"torch": "2.12, then 2.13"}, "device": "cpu"}
    assert joined(first, first) == first
    assert joined(first, second) == joined(both, second) == joined(both, both) == both


def test_two_runs_into_one_folder_are_refused(tmp_path, checkpoint):
    config, out = write_config(tmp_path, checkpoint, sentences=1, examples=[]), tmp_path / "out"
    for held in (out, out / "logs" / "wait-k_k=1"):
        held.mkdir(parents=True, exist_ok=True)
        with only_run(held), pytest.raises(ValueError, match="another run is writing into"):
            main([str(config), "--output", str(out)])
    main([str(config), "--output", str(out)])


def test_a_folder_of_another_run_is_refused(tmp_path, checkpoint):
    config = write_config(tmp_path, checkpoint, sentences=2)
    out = ["--output", str(tmp_path / "out")]
    main([str(config), *out])
    write_config(tmp_path, checkpoint, sentences=3)
    with pytest.raises(ValueError, match="reference_sha256, source_sha256; use --fresh"):
        main([str(config), *out])
    main([str(config), *out, "--fresh"])
