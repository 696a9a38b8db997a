"""`python tests/tiny_comet.py FOLDER`, run in COMET's environment: a COMET model of random weights, made on the spot.

Writes FOLDER/hparams.yaml, FOLDER/checkpoints/model.ckpt and FOLDER/encoder, as a fetched model has them; and, into
FOLDER/expected.json, the scores of FOLDER/samples.json by COMET's own Python interface.
"""

import json
import sys
from pathlib import Path

import torch
import yaml
from comet.models import RegressionMetric
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import XLMRobertaConfig, XLMRobertaTokenizerFast

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
LETTERS = "▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZäöüßÄÖÜ0123456789.,!?'-"
SIZE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def write_encoder(folder):
    """A tokenizer of single letters, and the configuration of a tiny encoder."""
    pieces = [(piece, 0.0) for piece in SPECIAL] + [(letter, -4.0) for letter in LETTERS]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    ends = [("<s>", 0), ("</s>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> $B </s>", ends)
    XLMRobertaTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    config = XLMRobertaConfig(vocab_size=len(pieces), max_position_embeddings=514, initializer_range=1.0, **SIZE)
    config.save_pretrained(folder)


def main(folder):
    write_encoder(folder / "encoder")
    torch.manual_seed(1)
    model = RegressionMetric(
        pretrained_model=str(folder / "encoder"), hidden_sizes=[8], load_pretrained_weights=False, local_files_only=True
    )
    (folder / "checkpoints").mkdir()
    checkpoint = {"state_dict": model.state_dict(), "hyper_parameters": dict(model.hparams)}
    torch.save({**checkpoint, "pytorch-lightning_version": "2.0.0"}, folder / "checkpoints" / "model.ckpt")
    (folder / "hparams.yaml").write_text(yaml.safe_dump(dict(model.hparams)), encoding="utf-8")
    samples = json.loads((folder / "samples.json").read_text(encoding="utf-8"))
    predicted = model.eval().half().predict(samples, gpus=0, progress_bar=False)
    (folder / "expected.json").write_text(json.dumps(predicted.scores), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
