import json

import torch
from conftest import TINY
from tiny_tokenizers import fast_tokenizer
from transformers import AutoModelForCausalLM, Qwen2Config

from evaluation.step_cost import main

L, D_kv, H, H_d = TINY["num_hidden_layers"], 2 * 12, 4, 12


def test_bytes_and_times_of_a_tiny_backbone(tmp_path, capsys):
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(Qwen2Config(**TINY, vocab_size=720)).save_pretrained(tmp_path / "model")
    fast_tokenizer("qwen").save_pretrained(tmp_path / "model")
    options = ["--rows", "9", "--columns", "7", "--repeats", "3", "--output", str(tmp_path / "cost.json")]
    main([str(tmp_path / "model"), *options])
    result = json.loads((tmp_path / "cost.json").read_text())
    assert result == json.loads(capsys.readouterr().out)
    # Keys and values of each token, float32; on the grid also its running triple (m, Z, S) over all heads.
    assert result["bytes"]["lm"] == L * 16 * 2 * D_kv * 4
    assert result["bytes"]["grid"] == L * 16 * (2 * D_kv + 2 * H + H * H_d) * 4
    assert all(value > 0 for value in result["milliseconds"].values())
    assert set(result["times_lm_step"]) == {"wait", "emit"}
