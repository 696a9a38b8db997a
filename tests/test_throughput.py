import json

import pytest
import torch
from conftest import tiny_grid
from tiny_training import arguments, write_config
from torch.utils.flop_counter import FlopCounterMode

from duplex_model.data import collate, make_example
from duplex_model.losses import DuplexLoss
from duplex_model.training.throughput import lm_cells, main, needed_flops

LAM = torch.tensor([0.01])


def test_needed_flops_are_those_of_the_matmuls(tokenizer):
    """Against PyTorch's own counter, on matrices so wide that what the formula leaves out hardly counts: what is done
    is what is needed, and at most a twentieth more."""
    sizes = {"hidden_size": 384, "intermediate_size": 1024, "vocab_size": 2000, "initializer_range": 0.02}
    model = tiny_grid(dtype=torch.float32, **sizes)
    batch = collate([make_example(tokenizer, "Das ist gut", "That is good")])
    loss = DuplexLoss(model, lam_lm=0.05)
    with FlopCounterMode(display=False) as counter:
        sums, _ = loss(batch, LAM)
        sum(sums).sum().backward()
    lengths = batch.source_len, batch.target_len, batch.row_count
    needed = needed_flops(model.config, *lengths, lm_cells(loss, batch))
    print(f"done / needed: {counter.get_total_flops() / needed:.3f}")
    assert 1 <= counter.get_total_flops() / needed < 1.05


def test_measured_on_a_tiny_recipe(tmp_path, capsys):
    write_config(tmp_path, threads=1)
    config, *data, _, _ = arguments(tmp_path)
    main([config, *data, "--steps", "2"])
    result = json.loads(capsys.readouterr().out)
    assert result["cells_per_second"] > 0 and result["peak_memory_gib"] > 0
    rates = result["gflops_per_second"], result["matmul_gflops_per_second"]
    assert 0 < rates[0] < rates[1]
    assert result["utilization"] == pytest.approx(rates[0] / rates[1], abs=0.05 / rates[1] + 0.001)  # all are rounded
