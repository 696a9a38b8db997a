"""Two processes train as one."""

import os
import socket
import sys
import time

import pytest
import torch
from accelerate import Accelerator
from tiny_training import SHORTEST, STAGES, arguments, make_stage, read_log, write_config
from torch.multiprocessing import ProcessRaisedException, get_context, start_processes

from duplex_model import train
from duplex_model.checkpoint import load_checkpoint
from duplex_model.data import collate, make_example
from duplex_model.tokenizer import Tokenizer
from duplex_model.training.loop import BatchStream, Run, backward

# Five sentences on two processes: unequal batches, so unequal counts of tokens and cells.
SHARES = (slice(0, 2), slice(2, 5))
WORDS_AHEAD = torch.tensor([1, 3, 2, 4, 1])
LAM = torch.tensor([0.01, 0.05])

pytestmark = pytest.mark.usefixtures("cpu")


def share_of(name, share):
    """The draws of a share of the five sentences: k of each sentence, or the prices, which are the batch's."""
    return (WORDS_AHEAD[share],) if name == "lm" else (LAM,)


def gradients(name, tokenizer, share):
    """Mean losses, counts and each parameter's gradient after `backward` on a share of the five sentences."""
    accelerator, stage = Accelerator(cpu=True), make_stage(name, tokenizer.vocab_size)
    batch = collate([make_example(tokenizer, *pair) for pair in SHORTEST[:5][share]])
    module = accelerator.prepare(stage.module)
    means, counts = backward(accelerator, module, torch.tensor(stage.weights), batch, share_of(name, share))
    named = accelerator.unwrap_model(module).named_parameters()
    return {"means": means, "counts": counts, **{key: parameter.grad for key, parameter in named}}


def process(rank, port, model_file, folder):
    """One of two processes: `main` twice, with a slow disk in process 0, then the gradients of both stages."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    os.environ.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    os.environ.pop("ACCELERATE_USE_CPU", None)  # `main` finds the other process on its own
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    tokenizer = Tokenizer(model_file)
    BatchStream.__getitem__ = noted(BatchStream.__getitem__, folder / f"batches-{rank}.txt")
    if rank == 0:
        Run._write, train.save = slow(Run._write), slow(train.save)
    for _ in range(2):  # the second time, each process resumes from the last checkpoints
        train.main(arguments(folder))
    torch.save({name: gradients(name, tokenizer, SHARES[rank]) for name in STAGES}, folder / f"gradients-{rank}.pt")
    torch.distributed.destroy_process_group()


def noted(function, path):
    """`function`, which writes the batch numbers that it is asked for into a file."""

    def wrapped(stream, number):
        with open(path, "a") as file:
            file.write(f"{number}\n")
        return function(stream, number)

    return wrapped


def slow(function):
    def wrapped(*args):
        time.sleep(0.2)
        return function(*args)

    return wrapped


@pytest.fixture(scope="module")
def processes(tokenizer, tmp_path_factory):
    """The folder in which two processes worked, and the failure of one of them or None."""
    folder = tmp_path_factory.mktemp("processes")
    steps = {"steps": 2, "log_every": 1}
    write_config(folder, lm=steps, duplex=steps)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    get_context("forkserver").set_forkserver_preload(["duplex_model.train"])  # imports once for both
    try:
        start_processes(process, (port, tokenizer.model_file, folder), nprocs=2, start_method="forkserver")
    except ProcessRaisedException as failure:
        return folder, str(failure)
    return folder, None


@pytest.mark.parametrize("name", STAGES)
def test_two_processes_have_the_gradient_of_their_union(name, processes, tokenizer):
    union = gradients(name, tokenizer, slice(0, 5))
    parts = [torch.load(processes[0] / f"gradients-{rank}.pt")[name] for rank in (0, 1)]
    alone = [gradients(name, tokenizer, share)["counts"] for share in SHARES]
    assert not torch.equal(*alone)
    for key, expected in union.items():
        assert expected.abs().max() > 0, key
        for part in parts:
            torch.testing.assert_close(part[key], expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


def test_each_process_has_its_own_batches(processes):
    """Two steps of each of the two stages."""
    numbers = [(processes[0] / f"batches-{rank}.txt").read_text().split() for rank in (0, 1)]
    assert numbers == [["0", "2"] * 2, ["1", "3"] * 2]


def test_main_in_two_processes(processes):
    """No process reads weights that another has still to write."""
    folder, failure = processes
    assert failure is None, failure
    for name in STAGES:
        load_checkpoint(folder / "run", name)
        steps = [record["step"] for record in read_log(folder / "run" / f"stage-{name}")]
        assert steps == [1, 2, 2]  # process 0 alone writes
