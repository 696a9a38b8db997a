import json

import pytest
import torch
from conftest import DEMO, demo_pairs, tiny_grid, tokens

from duplex_model.data import make_example
from duplex_model.engine import Engine, Limits, translate
from duplex_model.exact import exact_forward
from duplex_model.policies import EmitHeadPolicy
from evaluation.approximation import ExactEngine, ExactState, divergence, main


def test_one_layer_has_no_gap(tokenizer):
    """With one layer the two forms are the same: no divergence, and the same words at the same times."""
    model, policy = tiny_grid(num_hidden_layers=1, vocab_size=tokenizer.vocab_size), EmitHeadPolicy(0.05)
    examples = [make_example(tokenizer, *pair) for pair in demo_pairs()[:3]]
    kl, cells = divergence(model, examples)
    assert kl == pytest.approx(0, abs=1e-9)
    assert cells == sum(len(e.decision_rows) * (len(e.target) - 1) for e in examples)
    engines = [engine(model, tokenizer, Limits(0.3, 3)) for engine in (Engine, ExactEngine)]
    for source, _ in demo_pairs()[:3]:
        approximate, exact = (translate(engine, source, policy) for engine in engines)
        assert approximate == exact and approximate[0]


def test_several_layers_do(tokenizer):
    model = tiny_grid(vocab_size=tokenizer.vocab_size)
    assert divergence(model, [make_example(tokenizer, *demo_pairs()[0])])[0] > 1e-4


def test_a_state_s_cell_is_the_exact_form_s():
    model, (source, target) = tiny_grid(), tokens(5, 4, B=1)
    source_ids, target_ids = source[0].tolist(), target[0].tolist()
    state = ExactState(model, 64, tuple(source_ids[:2]), tuple(target_ids[:1])).write(target_ids[1])
    state = state.read(source_ids[2:4])
    with torch.no_grad():
        inputs, outputs = exact_forward(model, source[:, :4], target[:, :2])
        torch.testing.assert_close(state.cell.outputs[0, 0, 0], outputs[0, -1, -1], rtol=0, atol=1e-10)
        torch.testing.assert_close(state.cell.inputs[0, 0, 0], inputs[0, -1, -1], rtol=0, atol=1e-10)
    assert state.steps == 2


def write_text(folder, blank=()):
    """The demo sentences as text.de and text.en; without the words of the lines in `blank`."""
    for name, copy in (("source.de", "text.de"), ("reference.en", "text.en")):
        lines = (DEMO / name).read_text(encoding="utf-8").splitlines()
        (folder / copy).write_text("".join("\n" if i in blank else line + "\n" for i, line in enumerate(lines)))


def test_a_run_over_files(tmp_path, checkpoint, capsys):
    write_text(tmp_path, blank=[0])
    out = tmp_path / "gap.json"
    main(
        [str(tmp_path / "text"), "--checkpoint", str(checkpoint), "--limit", "2", "--lam", "0.1", "--output", str(out)]
    )
    result = json.loads(out.read_text())
    (point,) = result["points"]
    assert result["sentences"] == 1  # the empty one is not measured
    assert point["lam"] == 0.1 and {"BLEU", "AL"} == set(point["approximate"]) == set(point["exact"])
    assert '"kl_nats"' in capsys.readouterr().out


def test_the_oracle_anchor_is_refused(tmp_path, tokenizer):
    write_text(tmp_path)
    tiny_grid(vocab_size=tokenizer.vocab_size, anchor="oracle").save_pretrained(tmp_path / "model")
    tokenizer.save(tmp_path / "model")
    with pytest.raises(ValueError, match="model has the anchor 'oracle'"):
        main([str(tmp_path / "text"), "--checkpoint", str(tmp_path / "model")])
