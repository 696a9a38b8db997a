"""Low-rank adapters on all linear layers of the blocks, through `peft`; the heads are trained in full."""

from torch import nn

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
HEADS = ("lm_head", "emit_head")


def add_adapters(model, settings):
    """Freeze `model` (the grid or its causal LM) and put adapters into it; returns the `peft` model around it.

    What is trained, adapters and heads, is float32 whatever the frozen weights are. settings: LoraSettings.
    """
    from peft import LoraConfig, get_peft_model

    untie(model)
    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=list(LINEAR),
        modules_to_save=[name for name in HEADS if hasattr(model, name)],
    )
    adapted = get_peft_model(model, config)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return adapted


def save_adapters(adapted, folder):
    """Write the trained weights alone (adapters and heads), as `peft` does."""
    adapted.save_pretrained(folder, save_embedding_layers=False)


def load_adapters(model, folder):
    """`model`, as it was before training, with the trained weights in `folder` merged in."""
    from peft import PeftModel

    untie(model)
    return PeftModel.from_pretrained(model, folder).merge_and_unload()


def untie(model):
    """Give the LM head weights of its own, since it is trained and the embeddings are not."""
    if model.config.tie_word_embeddings:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
