"""The weights that the repository ships: size, licence card, and the behaviour that the demo promises."""

import shutil
from statistics import mean

import pytest
import torch
import yaml
from conftest import ROOT, SHARED, demo_pairs
from sacrebleu.metrics import BLEU
from safetensors import safe_open

from duplex_model.checkpoint import PACKAGED, load_checkpoint
from duplex_model.data import load_examples, read_pairs
from duplex_model.engine import Engine, translate
from duplex_model.policies import EmitHeadPolicy, Offline, WaitK
from evaluation.approximation import divergence
from evaluation.metrics import average_lagging


@pytest.fixture(scope="module")
def engines():
    return {backbone: Engine(*load_checkpoint(backbone=backbone)) for backbone in ("duplex", "lm")}


@pytest.mark.parametrize("backbone", ["duplex", "lm"])
def test_size_precision_and_card(backbone):
    weights = PACKAGED / backbone / "model.safetensors"
    assert weights.stat().st_size <= 20e6
    with safe_open(weights, "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} <= {torch.bfloat16, torch.float16}  # noqa: SIM118
    card = (PACKAGED / "README.md").read_text(encoding="utf-8")
    assert "CC-BY 2.0" in card and "tatoeba.org" in card.lower()


def test_damaged_weights_name_their_folder(tmp_path):
    folder = tmp_path / "cut"
    shutil.copytree(PACKAGED / "lm", folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(ValueError, match="cut: the weights are damaged or do not fit config.json"):
        load_checkpoint(folder, "lm")


def test_a_larger_lam_lags_less(engines):
    config = yaml.safe_load((ROOT / "eval_configs" / "demo.yaml").read_text(encoding="utf-8"))
    lags = []
    for lam in config["systems"][0]["sweep"]["lam"]:
        scores = []
        for source, reference in demo_pairs()[:24]:
            _, delays = translate(engines["duplex"], source, EmitHeadPolicy(lam))
            scores.append(average_lagging(delays, len(source.split()), len(reference.split())))
        lags.append(mean(scores))
    assert lags == sorted(lags, reverse=True) and len(set(lags)) == len(lags)


def test_translates_the_demo(engines):
    """Far above what chance, copying or a broken schedule could reach; the exact scores are in results/demo."""
    pairs = demo_pairs()[:30]
    references = [[reference for _, reference in pairs]]
    for engine, policy in (
        (engines["duplex"], Offline()),
        (engines["lm"], Offline()),
        (engines["duplex"], EmitHeadPolicy(0.01)),
        (engines["lm"], WaitK(5)),
    ):
        hypotheses = [" ".join(translate(engine, source, policy)[0]) for source, _ in pairs]
        score = BLEU().corpus_score(hypotheses, references).score
        print(f"{policy}: {score:.1f} BLEU")
        assert score > 25


def real_examples(engine, count):
    folder = SHARED / "tatoeba-de-en"
    if not folder.is_dir():
        pytest.skip("needs tatoeba-de-en/dev below $DUPLEX_DATA_DIR")
    return load_examples(engine.tokenizer, read_pairs(folder / "dev", "de", "en")[:count], 64)


def test_engine_equals_grid_on_real_text(engines):
    """Cell by cell along wait-3 and back, float32 and real weights."""
    from duplex_model.states import GridState

    engine = engines["duplex"]
    for example in real_examples(engine, 10):
        X, Y = len(example.source), len(example.target) - 1
        with torch.no_grad():
            grid = engine.model(torch.tensor([example.source]), torch.tensor([example.target[:-1]]))
            logits = engine.model.lm_logits(grid.outputs)[0]
            state = GridState.start(engine.model, example.source[:1], example.target[0])
            for y in range(Y):
                x_vis = min(X, 4 + 2 * y)
                if x_vis > len(state.source_ids):
                    state = state.read(example.source[len(state.source_ids) : x_vis])
                torch.testing.assert_close(state.logits()[1], logits[x_vis - 1, y], rtol=0, atol=2e-4)
                if y + 1 < Y:
                    state = state.write(example.target[y + 1])


def test_the_approximation_is_close_on_real_text(engines):
    """Mean KL of the next-token distribution, exact form against approximate form, in nats: a measurement, bounded."""
    kl, cells = divergence(engines["duplex"].model, real_examples(engines["duplex"], 20))
    print(f"mean KL(exact || approximate) = {kl:.4f} nats over {cells} cells")
    assert kl < 1.0
