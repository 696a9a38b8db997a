"""The agents under the real `simuleval` command, with random weights (the packaged ones are tested apart)."""

import json
import shutil
from argparse import ArgumentParser, Namespace

import pytest
import torch
from conftest import DEMO, demo_pairs, simuleval, write_files

from agents.duplex_agent import DuplexAgent
from agents.offline_agent import OfflineAgent
from agents.oracle_agent import OracleAgent
from agents.waitk_agent import WaitKAgent
from duplex_model.checkpoint import load_checkpoint
from duplex_model.engine import Engine, translate
from duplex_model.oracle import OraclePath
from duplex_model.package import package
from duplex_model.policies import Confidence, EmitHeadPolicy, LocalAgreement, WaitK

# options, backbone, policy of a sentence pair
AGENTS = [
    (
        ["--agent", "agents/duplex_agent.py", "--lam", "0.05", "--theta", "0.4"],
        "duplex",
        lambda *_: EmitHeadPolicy(0.05, 0.4),
    ),
    (["--agent-class", "agents.duplex_agent.DuplexAgent", "--lam", "0.1"], "duplex", lambda *_: EmitHeadPolicy(0.1)),
    (["--agent", "agents/waitk_agent.py", "--k", "2"], "lm", lambda *_: WaitK(2)),
    (
        ["--agent-class", "agents.waitk_agent.WaitKAgent", "--k", "3", "--backbone", "duplex"],
        "duplex",
        lambda *_: WaitK(3),
    ),
    (["--agent", "agents/confidence_agent.py", "--tau", "0.2"], "lm", lambda *_: Confidence(0.2)),
    (["--agent", "agents/agreement_agent.py"], "lm", lambda *_: LocalAgreement()),
    (["--agent", "agents/oracle_agent.py", "--lam", "0.5"], "duplex", lambda *pair: OraclePath(0.5, *pair)),
]


def agent_arguments(agent, **values):
    """The agent's options as SimulEval parses them, some set to `values`."""
    parser = ArgumentParser()
    agent.add_args(parser)
    return Namespace(**{**vars(parser.parse_args([])), **values})


@pytest.mark.parametrize("options,backbone,policy_of", AGENTS)
def test_agent_equals_engine(tmp_path, checkpoint, options, backbone, policy_of):
    pairs = demo_pairs()[:4]
    write_files(tmp_path, *zip(*pairs, strict=True))
    timing = tmp_path / "timing.jsonl"
    records, done = simuleval(tmp_path, *options, "--checkpoint", checkpoint, "--timing-file", timing)
    assert "WARNING" not in done.stderr
    engine = Engine(*load_checkpoint(checkpoint, backbone))
    times = [json.loads(line) for line in timing.read_text().splitlines()]
    assert [time["index"] for time in times] == [0, 1, 2, 3]
    for record, time, (source, reference) in zip(records, times, pairs, strict=True):
        words, delays = translate(engine, source, policy_of(source, reference))
        assert record["prediction"] == " ".join(words) and record["delays"] == delays
        assert time["words_read"] == delays and time["ms"] == sorted(time["ms"])
        stream, policy = engine.open(), policy_of(source, reference)
        for _ in stream.feed(source):
            list(stream.advance(policy))
        assert (time["steps"], time["cut"]) == (stream.steps, stream.over_limit)
        assert [read for read, count, _ in time["calls"] for _ in range(count)] == delays
        assert 0 < sum(ms for *_, ms in time["calls"]) <= time["total_ms"] + 1
        assert time["first_token_ms"] == time["ms"][0] <= time["total_ms"]


def test_the_oracle_knows_its_line(tmp_path, checkpoint):
    """Each sentence gets its own reference's schedule: from a later line on, and when an unfinished run goes on."""
    pairs = demo_pairs()[:6]
    write_files(tmp_path, *zip(*pairs, strict=True))
    engine = Engine(*load_checkpoint(checkpoint))
    expected = [translate(engine, source, OraclePath(1.0, source, reference))[1] for source, reference in pairs]
    wrong = [translate(engine, source, OraclePath(1.0, *pairs[i - 1]))[1] for i, (source, _) in enumerate(pairs)]
    assert all(right != other for right, other in zip(expected, wrong, strict=True))
    options = ("--agent", "agents/oracle_agent.py", "--lam", "1.0", "--checkpoint", checkpoint, "--no-scoring")
    records, _ = simuleval(tmp_path, *options, "--start-index", "2", "--end-index", "4")
    assert [(r["index"], r["delays"]) for r in records] == list(enumerate(expected))[2:4]
    records, _ = simuleval(tmp_path, *options, "--continue-unfinished")
    assert [(r["index"], r["delays"]) for r in records] == list(enumerate(expected))[2:]


def test_the_oracle_needs_a_reference(checkpoint):
    """SimulEval's `--target` is optional; the error says what is missing, before a model is loaded."""
    args = agent_arguments(OracleAgent, checkpoint="nowhere", source=str(DEMO / "source.de"), target=None)
    with pytest.raises(ValueError, match="--target is missing: .* add --target FILE"):
        OracleAgent.from_args(args)
    args.target, args.checkpoint = str(DEMO / "reference.en"), str(checkpoint / "lm")
    with pytest.raises(ValueError, match="'duplex' backbone"):
        OracleAgent.from_args(args)


def test_char_unit(tmp_path, checkpoint):
    write_files(tmp_path, *zip(*demo_pairs()[:2], strict=True))
    options = ("--agent", "agents/waitk_agent.py", "--checkpoint", checkpoint, "--eval-latency-unit", "char")
    records, done = simuleval(tmp_path, *options)
    assert "the model writes words, but latency is counted by char" in done.stderr
    for record in records:
        assert " " not in record["prediction"] and len(record["delays"]) == len(record["prediction"])


def test_a_target_without_spaces_is_written_character_by_character(tmp_path, checkpoint):
    """A model whose target unit is `char` may stop after any piece that completes a character."""
    folder = tmp_path / "zh"
    folder.mkdir()
    for name in ("model.safetensors", "spm.model"):
        (folder / name).write_bytes((checkpoint / "lm" / name).read_bytes())
    config = json.loads((checkpoint / "lm" / "config.json").read_text()) | {"target_unit": "char"}
    (folder / "config.json").write_text(json.dumps(config))
    write_files(tmp_path, ["Wir fahren morgen alle nach Berlin"], ["\u6211\u4eec\u660e\u5929\u53bb"])
    options = ("--agent", "agents/waitk_agent.py", "--checkpoint", folder, "--k", "2", "--eval-latency-unit", "char")
    (record,), _ = simuleval(tmp_path, *options)
    engine = Engine(*load_checkpoint(folder, "lm"))
    assert engine.tokenizer.joiner == ""
    words, _ = translate(engine, "Wir fahren morgen alle nach Berlin", WaitK(2))
    assert record["prediction"] == "".join(words).replace(" ", "")


@pytest.mark.parametrize("unit,warned", [("word", True), ("char", False), ("spm", True)])
def test_a_latency_unit_that_the_model_does_not_write_is_warned_of(unit, warned, tmp_path, checkpoint, caplog):
    config = json.loads((checkpoint / "lm" / "config.json").read_text()) | {"target_unit": "char"}
    for name in ("model.safetensors", "spm.model"):
        (tmp_path / name).write_bytes((checkpoint / "lm" / name).read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(config))
    WaitKAgent.from_args(agent_arguments(WaitKAgent, checkpoint=str(tmp_path), eval_latency_unit=unit))
    assert ("use --eval-latency-unit char" in caplog.text) == warned


def test_a_model_of_the_oracle_anchor_is_refused(tmp_path, checkpoint):
    for name in ("model.safetensors", "spm.model"):
        (tmp_path / name).write_bytes((checkpoint / "duplex" / name).read_bytes())
    config = json.loads((checkpoint / "duplex" / "config.json").read_text()) | {"anchor": "oracle"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="anchor is the true source length .*; train with a fixed anchor"):
        DuplexAgent.from_args(agent_arguments(DuplexAgent, checkpoint=str(tmp_path)))


def test_the_timing_file_is_this_run_s(tmp_path, checkpoint):
    """It begins anew with the first sentence, or goes on after the lines of the sentences before."""
    write_files(tmp_path, *zip(*demo_pairs()[:3], strict=True))
    timing = tmp_path / "timing.jsonl"
    options = ("--agent", "agents/waitk_agent.py", "--checkpoint", checkpoint, "--timing-file", timing)

    def indices():
        return [json.loads(line)["index"] for line in timing.read_text().splitlines()]

    for _ in range(2):
        simuleval(tmp_path, *options, "--no-scoring", "--end-index", "2")
        assert indices() == [0, 1]
    timing.write_text(timing.read_text() + '{"index": 2}\n{"ind')  # a kill between this file and SimulEval's log
    simuleval(tmp_path, *options, "--continue-unfinished")
    assert indices() == [0, 1, 2]
    with pytest.raises(FileNotFoundError):  # before the checkpoint is looked for
        lost = str(tmp_path / "none" / "timing")
        WaitKAgent.from_args(agent_arguments(WaitKAgent, timing_file=lost, checkpoint="nowhere"))


BAD_INPUT = [
    "",
    "Hallo!",
    "Das Haus ist gro\u00df. \r",
    "\ufeffMit einer Marke am Anfang.",
    "Ein\u00a0Wort\u3000mehr",
    "Ich mag \U0001f600 und \u4e2d\u6587 sehr .",
    "Ja , nein ; Punkt .",
    "Ja, nein; Punkt.",
    "\ufeff",
]


@pytest.mark.parametrize("agent", ["duplex", "waitk", "agreement", "oracle"])
def test_odd_lines(tmp_path, checkpoint, agent):
    write_files(tmp_path, BAD_INPUT, ["A reference ."] * len(BAD_INPUT))
    records, _ = simuleval(tmp_path, "--agent", f"agents/{agent}_agent.py", "--checkpoint", checkpoint)
    assert [r["index"] for r in records] == list(range(len(BAD_INPUT)))
    assert records[0]["prediction"] == "" == records[8]["prediction"]
    assert [r["source_length"] for r in records] == [len(line.split()) for line in BAD_INPUT]
    backbone = "duplex" if agent in ("duplex", "oracle") else "lm"
    special = ("<s>", "</s>", "<unk>", "<pad>", "<target>", "\ufffd")
    assert not any(mark in r["prediction"] for r in records for mark in special)
    engine = Engine(*load_checkpoint(checkpoint, backbone))
    first = engine.open()
    first.read("\ufeffMit einer")
    second = engine.open()
    second.read("Mit einer")
    assert first.state.source_ids == second.state.source_ids


@pytest.mark.parametrize("agent", ["duplex", "waitk"])
def test_a_long_line_is_cut_with_one_warning(tmp_path, checkpoint, agent):
    write_files(tmp_path, ["Hallo Tom", "Haus " * 2000], ["Hello Tom", "house"])
    options = ("--agent", f"agents/{agent}_agent.py", "--checkpoint", checkpoint)
    records, done = simuleval(tmp_path, *options)
    assert len(records) == 2 and records[1]["prediction"]
    assert done.stderr.count("line 2: the source has more than 63 tokens") == 1
    assert max(records[1]["delays"]) < 2000  # the rest came in one finished WRITE
    _, refused = simuleval(tmp_path / "b", *options, "--reject-long", source=tmp_path / "source.de",
                           reference=tmp_path / "reference.en", check=False)  # fmt: skip
    assert refused.returncode != 0 and "line 2: the source has more than 63 tokens" in refused.stderr


def test_lam_outside_the_trained_range_warns_once(tmp_path, checkpoint):
    write_files(tmp_path, *zip(*demo_pairs()[:2], strict=True))
    _, done = simuleval(tmp_path, "--agent", "agents/duplex_agent.py", "--checkpoint", checkpoint, "--lam", "2.5")
    assert done.stderr.count("lam = 2.5 is outside the range") == 1


REFUSED = [
    (["--agent", "agents/duplex_agent.py", "--lam", "0"], "lam = 0.0: the price of latency must be greater than 0"),
    (["--agent", "agents/duplex_agent.py", "--lam=-1e-3"], "must be greater than 0"),
    (["--agent", "agents/duplex_agent.py", "--theta", "1.5"], "theta = 1.5"),
    (["--agent", "agents/waitk_agent.py", "--k", "0"], "k = 0"),
    (["--agent", "agents/confidence_agent.py", "--tau", "1.5"], "tau = 1.5: the confidence threshold is a probability"),
    (["--agent", "agents/oracle_agent.py", "--lam", "0"], "lam = 0.0: the price of latency must be greater than 0"),
    (["--agent", "agents/oracle_agent.py", "--target", "nowhere.en"], "nowhere.en: no such text file"),
    (["--agent", "agents/waitk_agent.py", "--max-len-b", "0"], "max_len_b = 0.0"),
    (["--agent", "agents/waitk_agent.py", "--source", "nowhere.de"], "nowhere.de"),
    (["--agent", "agents/waitk_agent.py", "--target", "LICENSE"], "source and reference must be aligned"),
]


@pytest.mark.parametrize("options,message", REFUSED)
def test_wrong_values_are_refused_before_a_model_is_loaded(tmp_path, options, message):
    """The checkpoint does not exist, so whatever loads it first would complain about that instead."""
    write_files(tmp_path, ["Hallo Tom"])
    _, done = simuleval(tmp_path, *options, "--checkpoint", tmp_path / "nothing", check=False)
    assert done.returncode != 0 and message in done.stderr
    assert "nothing" not in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "spm.model"])
def test_an_incomplete_checkpoint_is_refused(tmp_path, checkpoint, missing):
    for path in (checkpoint / "duplex").iterdir():
        if path.name != missing:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(FileNotFoundError, match=missing):
        load_checkpoint(tmp_path)


def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path, checkpoint):
    for path in (checkpoint / "duplex").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ValueError, match="backbone"):
        load_checkpoint(tmp_path, "lm")
    config = json.loads((tmp_path / "config.json").read_text())
    for change in ({"num_hidden_layers": 4}, {"hidden_size": 64, "head_dim": 16}, {"vocab_size": 200}):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ValueError, match="fit"):
            load_checkpoint(tmp_path)


def test_packaged_weights_are_16_bit_copies(tmp_path, checkpoint):
    package(checkpoint, tmp_path / "packaged")
    for backbone in ("duplex", "lm"):
        packaged, tokenizer = load_checkpoint(tmp_path / "packaged", backbone)
        model, _ = load_checkpoint(checkpoint, backbone)
        assert tokenizer.vocab_size == model.config.vocab_size
        for name, parameter in model.state_dict().items():
            assert torch.equal(packaged.state_dict()[name], parameter.half().float())


def test_a_run_without_stage_1_is_packaged_and_named(tmp_path, checkpoint):
    shutil.copytree(checkpoint / "duplex", tmp_path / "run" / "duplex")
    package(tmp_path / "run", tmp_path / "packaged")
    assert [path.name for path in (tmp_path / "packaged").iterdir()] == ["duplex"]
    with pytest.raises(FileNotFoundError, match="no 'lm'; use --backbone duplex"):
        load_checkpoint(tmp_path / "packaged", "lm")
    shutil.copytree(checkpoint / "lm", tmp_path / "unfinished" / "lm")
    with pytest.raises(FileNotFoundError, match="no 'duplex'; train the stage duplex"):
        load_checkpoint(tmp_path / "unfinished")


def test_to_changes_the_precision(tmp_path, checkpoint):
    write_files(tmp_path, ["Hallo Tom"])
    source = str(tmp_path / "source.de")
    args = agent_arguments(OfflineAgent, checkpoint=str(checkpoint), source=source, target=source)
    agent = OfflineAgent.from_args(args)
    agent.to("cpu", fp16=True)
    assert agent.engine.model.dtype == torch.float16 and agent.stream.state.model.dtype == torch.float16
