"""Average trained weights with the ones that the training began from.

Fine-tuning at a small scale leaves the weights noisy around a better point; between the stage-1 weights and the
trained ones lies one that is better than both. Its place is chosen on dev.
"""

import torch


def trunk_of(model):
    """A copy of the weights that both stages have: everything but the EMIT head."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items() if not name.startswith("emit_head.")}


@torch.no_grad()
def average_with_initial(model, initial, shares, score):
    """Set the trunk of `model` to (1 - share) * trained + share * initial for the best of `shares`.

    initial: what `trunk_of` gave before the training. score(): what is to be small, with the model as it is then.
    Returns {share: score}.
    """
    trained, scores = trunk_of(model), {}

    def mix(share):
        mixed = {name: torch.lerp(trained[name], initial[name].to(trained[name]), share) for name in trained}
        model.load_state_dict(mixed, strict=False)

    for share in shares:
        mix(share)
        scores[share] = score()
    mix(min(scores, key=scores.get))
    return scores
